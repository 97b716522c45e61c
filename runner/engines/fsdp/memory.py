"""Training state of one rank under FSDP2.

Source: torch.distributed.fsdp `_fsdp_param.py` (each tensor is cut along its first dimension, shards are padded to
equal rows) and `_fsdp_collectives.py` (a unit is gathered into one buffer, its gradients leave as one). The units are
the model's layers; what is in no layer (embeddings, head) is the root's unit, which stays whole until its backward pass
ends.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from runner.memory.facts import ModelFacts, ParameterFact
from runner.memory.items import ALWAYS, Item
from runner.memory.workload import Precision, StateLayout, Workload
from runner.parallel.mesh import words

_LAYER = re.compile(r"^(.*?\.\d+)\.")


@dataclass(frozen=True)
class FsdpLayout(StateLayout):
    """Everything sharded; parameters are gathered unit by unit."""

    reshard_after_forward: bool = True
    hybrid_shard: int | None = None

    @property
    def label(self) -> str:
        """The method's name."""
        return fsdp_label(self.reshard_after_forward) + words({"hybrid_shard": self.hybrid_shard})

    @override
    def items(self, workload: Workload, facts: ModelFacts, rank: int | None) -> list[Item]:
        """The same on every rank: shards are padded."""
        ranks = self.hybrid_shard or workload.world_size
        elements = sum(_shard(fact, ranks) for fact in facts.parameters)
        width = 2 if workload.precision != "fp32" else 4
        whole = self._gathered(facts)
        why = "layers while they are gathered" if self.reshard_after_forward else "all layers, from forward to backward"
        largest = [_shard(fact, ranks) for fact in facts.parameters]
        gradients = f"fp32, 4 bytes a parameter ÷ {ranks} ranks"
        kept = f"{workload.optimizer.words}, ÷ {ranks} ranks"
        return [
            Item("parameters", 4 * elements + facts.buffer_bytes, "fp32 shards, and buffers", ALWAYS),
            Item("gathered_parameters", width * whole, why, ("forward", "recompute", "backward")),
            Item("gradients", 4 * elements, gradients, workload.gradient_moments()),
            Item("optimizer_states", workload.optimizer.part_bytes(elements), kept),
            Item(
                "communication_buckets",
                4 * max(_units(facts).values(), default=0),
                "the gradients of the largest unit, before they are reduced",
                ("backward",),
            ),
            Item("temporary", workload.step_temporaries(largest), "the optimizer's intermediate results", ("step",)),
        ]

    def _gathered(self, facts: ModelFacts) -> int:
        """Elements that are whole at a time: all, or the root's and two layers (the one at work and the next)."""
        units = _units(facts)
        if not self.reshard_after_forward:
            return sum(units.values())
        layers = sorted((size for name, size in units.items() if name), reverse=True)
        return units[""] + sum(layers[:2])

    def weight_bytes(self, precision: Precision) -> int:
        """Shards are gathered in the run's precision."""
        return 4 if precision == "fp32" else 2

    def described(self) -> dict[str, Any]:
        """Settings for JSON output."""
        return {
            "launcher": "fsdp",
            "reshard_after_forward": self.reshard_after_forward,
            "hybrid_shard": self.hybrid_shard,
            "offload_optimizer": "none",
            "offload_params": "none",
        }


def fsdp_label(reshard_after_forward: bool) -> str:
    """The method's name in tables."""
    return "FSDP" if reshard_after_forward else "FSDP without resharding"


def _shard(fact: ParameterFact, ranks: int) -> int:
    """Elements that each rank keeps of a tensor: rows of the first dimension, as many on every rank."""
    rows = max(1, fact.rows)
    return -(-rows // ranks) * (fact.numel // rows)


def _units(facts: ModelFacts) -> dict[str, int]:
    """Elements by unit; the root's under the empty name. A layer is what a numbered part of the model's name holds."""
    units: dict[str, int] = defaultdict(int)
    for fact in facts.parameters:
        layer = _LAYER.match(fact.name)
        units[layer[1] if layer else ""] += fact.numel
    return units
