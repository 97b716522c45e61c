"""Workloads from flat keywords: those of a layout choose the engine's layout, the others are the workload's own."""

from __future__ import annotations

from typing import Any

from runner.engines.ddp.memory import DdpLayout
from runner.engines.deepspeed.memory import Buckets, ZeroLayout
from runner.engines.fsdp.memory import FsdpLayout
from runner.memory.facts import Architecture, ModelFacts
from runner.memory.items import Item
from runner.memory.workload import StateLayout, Workload

LAYOUT_OF_ZERO = ("offload_optimizer", "offload_params", "buckets", "zero3_init")
LAYOUT_OF_DDP = ("gradient_as_bucket_view", "gradients_kept_between_steps")


def made(architecture: Architecture, **fields: Any) -> Workload:
    """A workload; ZeRO-2 on two GPUs unless said otherwise."""
    launcher, stage = fields.pop("launcher", "deepspeed"), fields.pop("zero_stage", 2)
    zero = {name: fields.pop(name) for name in LAYOUT_OF_ZERO if name in fields}
    ddp = {name: fields.pop(name) for name in LAYOUT_OF_DDP if name in fields}
    layouts: dict[str, StateLayout] = {
        "ddp": DdpLayout(**ddp),
        "fsdp": FsdpLayout(),
        "deepspeed": ZeroLayout(stage, **zero),
    }
    layout = layouts[launcher]
    return Workload(architecture, layout, **fields)


def state_items(workload: Workload, facts: ModelFacts, rank: int | None = None) -> list[Item]:
    """Training state of one rank, of the fullest with None."""
    return workload.layout.items(workload, facts, rank)


__all__ = ["Buckets", "made", "state_items"]
