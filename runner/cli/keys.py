"""`python -m runner keys [TEXT]`: every key with its default, unit, range and meaning."""

from __future__ import annotations

from collections.abc import Sequence

from runner.compose.validation import field_of, key_names
from runner.errors import EXIT_COMPLETED, RequestError

USAGE = """usage: python -m runner keys [TEXT ...]

Every configuration key, those of the recipes (task.KEY) among them, with default, unit, range and meaning; with
TEXT those whose name or meaning holds it."""


def main(arguments: Sequence[str]) -> int:
    """Print all keys, or those whose name or meaning holds the text."""
    fields = {key: field for key in key_names() if (field := field_of(key)) is not None}
    lines = [f"{key}={field.default}: {field.description}" for key, field in fields.items()] + _task_lines()
    found = [line for line in lines if not arguments or any(text.lower() in line.lower() for text in arguments)]
    print("\n".join(found) or f"no key and no meaning holds {' or '.join(arguments)}")
    return EXIT_COMPLETED


def _task_lines() -> list[str]:
    """The `task.*` keys of every recipe that can be chosen, with the recipe's name behind the meaning."""
    from runner.paths import recipe_dirs
    from runner.recipe import recipe_class

    names = dict.fromkeys(path.name for folder in recipe_dirs() for path in sorted(folder.glob("*.py")))
    lines = []
    for name in (name for name in names if not name.startswith("_")):
        try:
            fields = recipe_class(name).Options.model_fields
        except RequestError:  # a broken recipe is named when it is run
            continue
        lines += [f"task.{key}={field.default}: {field.description} ({name})" for key, field in fields.items()]
    return lines
