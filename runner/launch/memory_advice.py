"""What to say when memory ran out: where, how full, which settings matter, and three ways out, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.config import plan
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.engines.base import Saving
from runner.memory.amounts import gib

GIB = 2**30
MOST_SUGGESTIONS = 3
_BEFORE_TRAINING = ("startup", "data_preparation", "model_load", "save_model", "checkpoint")


def memory_advice(config: RunConfig, failure: dict[str, Any]) -> list[str]:
    """Lines for the terminal.

    Args:
        config: resolved.
        failure: the record's `failure`: rank, phase, device, peak_bytes and capacity_bytes, as far as known.
    """
    phase, device = failure.get("phase") or "an unknown phase", failure.get("device") or config.launcher.device
    lines = [f"out of memory in {phase}, rank {failure.get('rank')}, device {device}" + _fullness(failure)]
    lines.append("settings   " + ", ".join(f"{key}={value}" for key, value in _settings(config).items()))
    suggestions = suggestions_for(config, failure.get("phase"))
    kept = f" (the global batch stays {plan.global_batch_size(config)})" if config.mode == "train" else ""
    return [*lines, *(f"try {number}      {text}{kept}" for number, text in enumerate(suggestions, start=1))]


def _fullness(failure: dict[str, Any]) -> str:
    peak, capacity = failure.get("peak_bytes"), failure.get("capacity_bytes")
    if not peak or not capacity:
        return ""
    return f"; peak {gib(peak)} of {gib(capacity)}"


def _settings(config: RunConfig) -> dict[str, Any]:
    train = config.train
    lengths = {f"task.{key}": value for key, value in config.task.items() if "length" in key or key == "block_size"}
    return {
        "train.micro_batch_size": train.micro_batch_size,
        "train.eval_micro_batch_size": train.eval_micro_batch_size,
        **lengths,
        "precision": config.precision.name,
        **engine_of(config).choices(config),
        "train.gradient_checkpointing": str(train.gradient_checkpointing).lower(),
    }


def suggestions_for(config: RunConfig, phase: str | None) -> list[str]:
    """Up to three sets of overrides, in the order in which to try them; none changes the global batch."""
    if phase == "evaluation":
        found = [*_smaller_evaluation(config), *_partition(config), *_offload(config)]
    elif phase in _BEFORE_TRAINING:
        found = [*_partition(config), *_offload(config), *_precision(config)]
    else:
        found = [
            *_smaller_micro_batch(config),
            *_checkpointing(config),
            *_partition(config),
            *_offload(config),
            *_precision(config),
        ]
    return found[:MOST_SUGGESTIONS]


def _smaller_micro_batch(config: RunConfig) -> Iterator[str]:
    train = config.train
    rows = train.micro_batch_size * train.gradient_accumulation_steps
    smaller = max((size for size in range(1, train.micro_batch_size // 2 + 1) if rows % size == 0), default=0)
    if smaller:
        fixed = train.global_batch_size is not None  # accumulation follows from it
        yield f"train.micro_batch_size={smaller}" + (
            "" if fixed else f" train.gradient_accumulation_steps={rows // smaller}"
        )


def _smaller_evaluation(config: RunConfig) -> Iterator[str]:
    size = config.train.eval_micro_batch_size
    for smaller in dict.fromkeys((size // 2, max(1, size // 8))):
        if 0 < smaller < size:
            yield f"train.eval_micro_batch_size={smaller}"


def _checkpointing(config: RunConfig) -> Iterator[str]:
    if not config.train.gradient_checkpointing:
        yield "train.gradient_checkpointing=true"


def _savings(config: RunConfig) -> list[Saving]:
    several = plan.world_size(config) > 1  # one rank has nothing to share with
    on_cpu = config.launcher.device == "cpu"  # there it is host memory that ran out
    return [
        item for item in engine_of(config).savings(config, several) if not item.minor and not (on_cpu and item.to_host)
    ]


def _partition(config: RunConfig) -> Iterator[str]:
    yield from (_typed(config, item) for item in _savings(config) if not item.to_host)


def _offload(config: RunConfig) -> Iterator[str]:
    yield from (_typed(config, item) for item in _savings(config) if item.to_host)


def _typed(config: RunConfig, saving: Saving) -> str:
    """What to type; what is chosen already is left out."""
    chosen = engine_of(config).choices(config)
    return " ".join(f"{group}={option}" for group, option in saving.choices.items() if chosen.get(group) != option)


def _precision(config: RunConfig) -> Iterator[str]:
    if config.precision.name == "fp32":
        yield "precision=bf16"
