"""`python -m runner keys [TEXT]`: every key with its default, unit, range and meaning."""

from __future__ import annotations

from collections.abc import Sequence

from runner.compose.typed import field_of, key_names
from runner.errors import EXIT_COMPLETED


def main(arguments: Sequence[str]) -> int:
    """Print all keys, or those whose name or meaning holds the text."""
    for key in key_names():
        field = field_of(key)
        line = f"{key}={field.default}: {field.description}"
        if not arguments or any(text.lower() in line.lower() for text in arguments):
            print(line)
    return EXIT_COMPLETED
