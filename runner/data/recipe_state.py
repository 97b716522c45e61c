"""What a recipe carries from one block of rows to the next (a remainder, counts), as JSON: a preparation can go on
later.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from runner.recipe import Recipe

_OWN = ("config", "options")


def state_of(recipe: Recipe) -> dict[str, Any] | None:
    """Plain values and dataclasses of plain values among the recipe's attributes; None where there is anything else."""
    state: dict[str, Any] = {}
    for name, value in vars(recipe).items():
        if name in _OWN:
            continue
        plain = dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
        try:
            same = json.loads(json.dumps(plain)) == plain
        except (TypeError, ValueError):
            return None
        if not same:  # tuples and keys that are no text would come back as something else
            return None
        state[name] = plain
    return state


def set_state(recipe: Recipe, state: dict[str, Any]) -> None:
    """Give a new recipe the state of another one."""
    for name, plain in state.items():
        value = getattr(recipe, name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field, item in plain.items():
                setattr(value, field, item)
        else:
            setattr(recipe, name, plain)
