"""Every `auto` of a configuration replaced by what it means on this machine and for this data."""

from __future__ import annotations

from pathlib import Path

from runner import machine
from runner.config import plan
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.errors import Problem
from runner.optimizers import optimizer_of

DEFAULT_CPU_RANKS = 2
BATCHES_AHEAD = 2  # on a GPU: as many as a worker of torch's data loader


def resolve_machine(config: RunConfig) -> tuple[RunConfig, list[Problem]]:
    """Device, ranks, threads, precision and batch, in a copy; problems where they cannot be had."""
    resolved = config.model_copy(deep=True)
    _absolute_paths(resolved)
    problems = _launcher(resolved) + _precision(resolved)
    if resolved.optimizer.fused == "auto":
        has_fused = optimizer_of(resolved.optimizer).has_fused
        resolved.optimizer.fused = has_fused and engine_of(resolved).why_not_fused(resolved) is None
    if resolved.train.batches_ahead == "auto":
        resolved.train.batches_ahead = BATCHES_AHEAD if resolved.launcher.device == "cuda" else 0
    problems += plan.mesh(resolved).problems() or _batch(resolved)
    return resolved, problems


def _absolute_paths(config: RunConfig) -> None:
    """Local files by their absolute names: a run folder means the same wherever it is read."""
    if config.model.path:
        config.model.path = str(Path(config.model.path).expanduser().absolute())
    if config.dataset.source == "files":
        for split in ("train", "validation", "test"):
            named = getattr(config.dataset, split)
            names = [named] if isinstance(named, str) else named or []
            absolute = [str(Path(name).expanduser().absolute()) for name in names]
            setattr(config.dataset, split, absolute[0] if isinstance(named, str) else absolute or None)


def _launcher(config: RunConfig) -> list[Problem]:
    launcher, devices = config.launcher, machine.visible_devices(config.launcher.gpu_ids)
    if launcher.device == "auto":
        launcher.device = "cuda" if devices else "cpu"
    if launcher.num_processes == "auto":
        launcher.num_processes = max(1, len(devices)) if launcher.device == "cuda" else DEFAULT_CPU_RANKS
    ranks = int(launcher.num_processes)
    if launcher.omp_num_threads == "auto":
        launcher.omp_num_threads = max(1, machine.physical_cores() // max(1, ranks))
    if ranks < 1:
        return [Problem("launcher.num_processes", ranks, "at least one rank is needed", "use launcher.num_processes=1")]
    return []


def _precision(config: RunConfig) -> list[Problem]:
    if config.precision.name == "auto":
        devices = machine.visible_devices(config.launcher.gpu_ids)
        modern = bool(devices) and all(device.has_bf16 for device in devices)
        config.precision.name = (
            "fp32"
            if config.launcher.device == "cpu"
            else "bf16"
            if modern
            else "fp32"
            if config.model.fp16_overflows
            else "fp16"
        )
    return []


def _batch(config: RunConfig) -> list[Problem]:
    """global = micro × accumulation × ranks: with a global batch asked for, accumulation follows."""
    train = config.train
    if train.global_batch_size is None:
        return []
    ranks = plan.data_parallel_size(config)
    per_pass = train.micro_batch_size * ranks
    if (
        train.gradient_accumulation_steps > 1
        and train.global_batch_size != per_pass * train.gradient_accumulation_steps
    ):
        return [_contradiction(config, ranks)]
    if train.global_batch_size % per_pass:
        lower = max(1, train.global_batch_size // per_pass) * per_pass
        near = sorted({lower, lower + per_pass})
        return [
            Problem(
                "train.global_batch_size",
                train.global_batch_size,
                f"is no multiple of train.micro_batch_size={train.micro_batch_size} × {ranks} ranks = {per_pass}",
                "use " + " or ".join(f"train.global_batch_size={value}" for value in near),
            )
        ]
    train.gradient_accumulation_steps = train.global_batch_size // per_pass
    return []


def _contradiction(config: RunConfig, ranks: int) -> Problem:
    train = config.train
    product = train.micro_batch_size * train.gradient_accumulation_steps * ranks
    return Problem(
        "train.global_batch_size",
        train.global_batch_size,
        f"but train.micro_batch_size={train.micro_batch_size} × "
        f"train.gradient_accumulation_steps={train.gradient_accumulation_steps} × {ranks} ranks = {product}",
        f"use train.global_batch_size={product} or leave train.gradient_accumulation_steps out",
    )


def resolve_owners(config: RunConfig, total_steps_known: bool) -> list[Problem]:
    """Replace `owner=auto` in place; refuse what the owner cannot do."""
    return engine_of(config).resolve_owners(config, total_steps_known)
