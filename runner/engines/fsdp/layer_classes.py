"""Which layers of a model FSDP gathers one by one, from the source text of the installed transformers.

accelerate's own choice (`_no_split_modules`) shards an embedding twice for BERT and saves nothing for DeBERTa; the
layers that gradient checkpointing recomputes are the repeated blocks of every family.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

BASE = "GradientCheckpointingLayer"


def layer_classes(model_type: str) -> tuple[str, ...]:
    """Names of a model type's layer classes, sorted; empty where its source is not found."""
    return tuple(sorted(set(re.findall(rf"^class (\w+)\({BASE}\)", _source(model_type), re.MULTILINE))))


def unknown_classes(model_type: str, wanted: Iterable[str]) -> list[str]:
    """Those of some names that a model type's source does not mention; none where its source is not found."""
    words = set(re.findall(r"\w+", _source(model_type)))
    return [name for name in wanted if words and name not in words]


@lru_cache(maxsize=8)
def _source(model_type: str) -> str:
    """The text of a model type's module; empty where it is not found."""
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None or not model_type:
        return ""
    module = model_type.replace("-", "_")
    try:
        return (Path(found.origin).parent / "models" / module / f"modeling_{module}.py").read_text(encoding="utf-8")
    except OSError:
        return ""


def chosen_layers(module_classes: Iterable[type], wanted: list[str] | None) -> list[str]:
    """The classes to wrap among those of a model's modules.

    Raises:
        ValueError: where a wanted one is not there, or there is none to choose.
    """
    classes = set(module_classes)
    if wanted is not None:
        missing = sorted(set(wanted) - {item.__name__ for item in classes})
        if missing:
            raise ValueError(f"fsdp.wrap: the model has no module of class {', '.join(missing)}")
        return wanted
    layers = {item.__name__ for item in classes if any(parent.__name__ == BASE for parent in item.__mro__)}
    if not layers:
        raise ValueError("the model has no layers that gradient checkpointing knows; name them with fsdp.wrap=[CLASS]")
    return sorted(layers)
