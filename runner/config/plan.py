"""How the global batch, the optimizer steps and the learning rate follow from a configuration.

One place for each of these facts: rendering, the estimate, the loop and the report all call it.
"""

from __future__ import annotations

import math

from runner import adapters, engines
from runner.config.optimization import SchedulerConfig
from runner.config.schema import RunConfig
from runner.parallel.mesh import Mesh
from runner.schedules import schedule_of


def world_size(config: RunConfig) -> int:
    """Ranks over all machines. The configuration must be resolved (`num_processes` a number)."""
    assert isinstance(config.launcher.num_processes, int), "resolve the configuration first"
    return config.launcher.num_processes * config.launcher.num_nodes


def mesh(config: RunConfig) -> Mesh:
    """How the ranks are split."""
    world = world_size(config)
    return Mesh.of(world, config.parallel, world // config.launcher.num_nodes)


def data_parallel_size(config: RunConfig) -> int:
    """Replicas that see rows of their own: batches, shares, throughput and evaluation count these, not ranks."""
    return mesh(config).data


def global_batch_size(config: RunConfig) -> int:
    """Rows per optimizer step: micro batch × accumulation × data-parallel size."""
    return config.train.micro_batch_size * config.train.gradient_accumulation_steps * data_parallel_size(config)


def batches_per_epoch(rows: int, config: RunConfig) -> int:
    """Micro batches of each replica in one epoch; the last may be smaller, no row is dropped or repeated."""
    return math.ceil(rows / (config.train.micro_batch_size * data_parallel_size(config)))


def steps_per_epoch(rows: int, config: RunConfig) -> int:
    """Optimizer steps of one epoch; the last may accumulate fewer micro batches."""
    return math.ceil(batches_per_epoch(rows, config) / config.train.gradient_accumulation_steps)


def total_steps(rows: int, config: RunConfig) -> int:
    """Optimizer steps of the whole run: `epochs` passes, or `max_steps` if that ends sooner."""
    steps = steps_per_epoch(rows, config) * config.train.epochs
    return min(steps, config.train.max_steps) if config.train.max_steps else steps


def warmup_steps(scheduler: SchedulerConfig, total: int) -> int:
    """Optimizer steps of warm-up: as given, or a share of the run's `total`, rounded up as transformers does."""
    return scheduler.warmup_steps if scheduler.warmup_ratio is None else math.ceil(scheduler.warmup_ratio * total)


def learning_rate_factor(step: int, scheduler: SchedulerConfig, total: int) -> float:
    """Factor on the peak learning rate at optimizer step `step`, counted from 0: linear warm-up from 0, then the
    schedule's own formula (runner/schedules.py).
    """
    warmup = warmup_steps(scheduler, total)
    if step < warmup:
        return step / warmup
    return schedule_of(scheduler).after_warmup(step, warmup, total, scheduler)


def method(config: RunConfig) -> str:
    """The row's name in a comparison: `DDP`, `ZeRO-2`, `ZeRO-3 + CPU offload`, `ZeRO-2 LoRA`, …"""
    engine = engines.label_of(config.model_dump(mode="json", include={"launcher", "parallel", *engines.sections()}))
    return f"{engine} {adapters.adapter_of(config).label}".rstrip()
