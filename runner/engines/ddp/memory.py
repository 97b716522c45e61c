"""Training state of one rank under torch's DistributedDataParallel, as accelerate 1.15 sets it up.

Source: torch's DistributedDataParallel (reducer buckets) and torch/optim/adam.py; fp32 weights, gradients and Adam's
two moments are 16 bytes a parameter, DDP's buckets another 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from runner.memory.facts import ModelFacts
from runner.memory.items import ALWAYS, Item
from runner.memory.workload import DeviceType, Precision, StateLayout, Workload


@dataclass(frozen=True)
class DdpLayout(StateLayout):
    """Everything whole on every rank."""

    gradient_as_bucket_view: bool = False
    gradients_kept_between_steps: bool = False

    @property
    def label(self) -> str:
        """The method's name."""
        return "DDP"

    @override
    def items(self, workload: Workload, facts: ModelFacts, rank: int | None) -> list[Item]:
        """The same on every rank."""
        return _items(self, workload, facts)

    @override
    def weight_bytes(self, precision: Precision) -> int:
        """fp32 whatever the precision: autocast makes copies."""
        return 4

    def compute_precision(self, precision: Precision, device: DeviceType) -> Precision:
        """On a CPU accelerate 1.15 ignores fp16 and computes fp32."""
        return "fp32" if device == "cpu" and precision == "fp16" else precision

    def autocast(self, precision: Precision) -> bool:
        """Half precision is autocast."""
        return precision != "fp32"

    def described(self) -> dict[str, Any]:
        """Settings for JSON output."""
        return {"launcher": "ddp", "zero_stage": 0, "offload_optimizer": "none", "offload_params": "none"}


def _items(layout: DdpLayout, workload: Workload, facts: ModelFacts) -> list[Item]:
    """fp32 weights, gradients and Adam states (16 bytes a parameter), plus DDP's buckets."""
    size = 4 * facts.numel
    groups = facts.groups(workload.weight_decay_groups)
    items = [
        Item("parameters", size + facts.buffer_bytes, "fp32 weights and buffers", ALWAYS),
        Item("optimizer_states", workload.optimizer.whole_bytes(facts.parameters), workload.optimizer.words),
        Item(
            "temporary",
            max(workload.step_temporaries(group) for group in groups),
            "the optimizer's intermediate results",
            ("step",),
        ),
    ]
    if workload.world_size > 1:
        view = layout.gradient_as_bucket_view
        why = (
            "gradients live in DDP's buckets"
            if view
            else "DDP copies every gradient into buckets it keeps (gradient_as_bucket_view=False, accelerate's default)"
        )
        items.append(Item("communication_buckets", 0 if view else size, why))
    moments = (
        ALWAYS[1:]
        if workload.world_size > 1 and layout.gradient_as_bucket_view
        else workload.gradient_moments(layout.gradients_kept_between_steps)
    )
    items.append(Item("gradients", size, "fp32, 4 bytes a parameter", moments))
    if workload.autocast:
        items.append(
            Item(
                "temporary",
                2 * facts.largest,
                "half-precision gradient of the largest weight before it is cast to fp32",
                ("backward",),
            )
        )
    return items
