"""Read values out of a mapping that may be half-filled, older or written by hand, without failing.

Every reader returns None (or something empty) where the value is missing or of another type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any


def dig(mapping: Mapping[str, Any], path: str) -> object:
    """Value at a dotted path such as `data.train.rows`, or None where any part is missing."""
    value: object = mapping
    for key in _parts(path):
        if type(value) is not dict and not isinstance(value, Mapping):  # the first test is the fast one
            return None
        value = value.get(key)
    return value


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def number(value: object) -> float | None:
    """The value as a finite float; None for text, booleans, NaN and infinities."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def integer(value: object) -> int | None:
    """The value as an int when it is a whole number, else None."""
    result = number(value)
    return int(result) if result is not None and result.is_integer() else None


def text(value: object) -> str:
    """The value when it is text, without control characters (a terminal would obey them); else ''."""
    if not isinstance(value, str):
        return ""
    if value.isprintable():
        return value
    return "".join(letter if letter.isprintable() else " " for letter in value)


def mapping(value: object) -> Mapping[str, Any]:
    """The value when it is a mapping, else an empty one."""
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    """The value when it is a list or tuple, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


def numbers(value: object) -> dict[str, float]:
    """The finite numbers of a mapping, by cleaned name; everything else is left out."""
    found = {text(str(key)): number(item) for key, item in mapping(value).items()}
    return {key: item for key, item in found.items() if item is not None}


def integers(value: object) -> tuple[int, ...]:
    """The whole numbers of a list, in order; everything else is left out."""
    found = (integer(item) for item in sequence(value))
    return tuple(item for item in found if item is not None)
