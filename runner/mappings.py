"""Nested mappings as one level of dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key → value; lists and empty mappings stay values."""
    flat: dict[str, Any] = {}
    for key, item in tree.items():
        name = f"{prefix}{key}"
        if item and (type(item) is dict or isinstance(item, Mapping)):  # the first test is the fast one
            flat.update(flatten(item, f"{name}."))
        else:
            flat[name] = item
    return flat
