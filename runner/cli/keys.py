"""`python -m runner keys [TEXT]`: every key with its default, unit, range and meaning."""

from __future__ import annotations

from collections.abc import Sequence

from runner.compose.validation import field_of, key_names
from runner.errors import EXIT_COMPLETED

USAGE = """usage: python -m runner keys [TEXT ...]

Every configuration key with default, unit, range and meaning; with TEXT those whose name or meaning holds it."""


def main(arguments: Sequence[str]) -> int:
    """Print all keys, or those whose name or meaning holds the text."""
    lines = [f"{key}={field_of(key).default}: {field_of(key).description}" for key in key_names()]
    found = [line for line in lines if not arguments or any(text.lower() in line.lower() for text in arguments)]
    print("\n".join(found) or f"no key and no meaning holds {' or '.join(arguments)}")
    return EXIT_COMPLETED
