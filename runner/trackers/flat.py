"""A nested configuration as what every tracker takes: dotted names with plain, short values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from runner.mappings import flatten
from runner.trackers.tracker import Scalar

LONGEST_TEXT = 500  # characters; MLflow's servers refuse longer parameters


def flattened(tree: Mapping[str, Any]) -> tuple[dict[str, Scalar], list[str]]:
    """Dotted name → number, truth value or text; and the names whose text was shortened.

    Lists of plain values become their JSON text; None becomes `null`, as in YAML. An empty mapping is `{}`.
    """
    values: dict[str, Scalar] = {}
    shortened: list[str] = []
    for key, value in flatten(tree).items():
        plain = value if isinstance(value, (bool, int, float)) else _text(value)
        if isinstance(plain, str) and len(plain) > LONGEST_TEXT:
            plain = plain[: LONGEST_TEXT - 1] + "…"
            shortened.append(key)
        values[key] = plain
    return values, shortened


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def numbers(tree: dict[str, Any], prefix: str) -> dict[str, float]:
    """The finite numbers of a nested mapping, by dotted name; a list's entries are numbered from 0."""
    found: dict[str, float] = {}
    for name, value in tree.items():
        if isinstance(value, list):
            value = dict(enumerate(value))
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[f"{prefix}{name}"] = float(value)
    return found
