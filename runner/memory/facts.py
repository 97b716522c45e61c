"""What is known of a model without building it, and of its tensors once its class was built on the meta device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Family = Literal["encoder", "seq2seq", "causal_lm"]


@dataclass(frozen=True)
class Architecture:
    """Which model class is built, from which facts.

    `facts` are the words of the transformers config class with `model_type` among them, as JSON text
    (sorted), so that the value is hashable and a model is built once per process.
    """

    family: Family
    facts: str
    num_labels: int = 2

    @classmethod
    def of(cls, family: Family, facts: Mapping[str, Any], num_labels: int = 2) -> Architecture:
        """An architecture from a mapping. Raises ValueError without a `model_type`."""
        if not facts.get("model_type"):
            raise ValueError("the architecture facts name no model_type, so no model class can be built from them")
        return cls(family, json.dumps(dict(facts), sort_keys=True), num_labels)

    def mapping(self) -> dict[str, Any]:
        """The facts as a fresh dictionary."""
        loaded: dict[str, Any] = json.loads(self.facts)
        return loaded


@dataclass(frozen=True)
class ParameterFact:
    """One trainable tensor: name, elements, whether weight decay applies (two dimensions or more), size of the first
    dimension, all sizes.
    """

    name: str
    numel: int
    decayed: bool
    rows: int = 1
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class ModelFacts:
    """Parameters in the model's own order (tied weights once), buffers in bytes, largest layer in elements."""

    parameters: tuple[ParameterFact, ...]
    buffer_bytes: int
    vocab_size: int
    max_positions: int | None

    @property
    def numel(self) -> int:
        """Trainable elements."""
        return sum(fact.numel for fact in self.parameters)

    @property
    def largest(self) -> int:
        """Elements of the largest single tensor."""
        return max((fact.numel for fact in self.parameters), default=0)

    def groups(self, split_by_decay: bool) -> list[list[int]]:
        """Elements of each tensor, by optimizer parameter group: decayed first, then the rest."""
        if not split_by_decay:
            return [[fact.numel for fact in self.parameters]]
        halves = [[f.numel for f in self.parameters if f.decayed is wanted] for wanted in (True, False)]
        return [half for half in halves if half]
