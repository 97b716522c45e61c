"""What a resume may change, and on how many ranks a checkpoint can be resumed.

The losses and metrics after a resume are those of the uninterrupted run, so whatever decides them stays as it
was. Listed here is what does not decide them; everything else is refused (docs/reliability.md has the same list).
"""

from __future__ import annotations

from typing import Any

from runner import machine
from runner.config import plan
from runner.config.schema import RunConfig
from runner.errors import Problem
from runner.mappings import flatten
from runner.schedules import schedule_of

HARMLESS = frozenset(
    {
        "note",
        "train.log_every",
        "train.save_model",
        "train.evaluate_every_epoch",
        "train.evaluate_every_steps",
        "train.early_stopping_patience",
        "train.max_nonfinite_steps",
        "train.batches_ahead",
        "train.warmup_steps_not_timed",
        "train.dataloader_workers",
        "checkpoint.every_steps",
        "checkpoint.every_epoch",
        "checkpoint.every_minutes",
        "checkpoint.keep_last",
        "checkpoint.keep_best",
        "checkpoint.on_preemption",
        "checkpoint.required",
        "launcher.main_process_port",
        "launcher.start_method",
        "launcher.max_restarts",
        "launcher.start_timeout_seconds",
        "launcher.hang_timeout_seconds",
        "launcher.gpu_ids",
        "fsdp.checkpoint",
        "offload.pin_memory",
        "cache_dir",
        "tracker.project",
        "tracker.wait_seconds",
    }
)
ROUNDING = {  # may change, but the last bits may differ from then on
    "train.eval_micro_batch_size": "evaluation pads other rows together",
    "launcher.omp_num_threads": "sums are split over other threads",
    "train.micro_batch_size": "each optimizer step keeps its rows, in other micro batches",
    "train.gradient_accumulation_steps": "each optimizer step keeps its rows, in other micro batches",
    "train.global_batch_size": "",
    "parallel.hybrid_shard": "gradients are summed in another order",
    "launcher.num_processes": "each optimizer step keeps its rows, on another number of ranks",
}
LENGTH = ("train.epochs", "train.max_steps")
BATCH = ("train.micro_batch_size", "train.gradient_accumulation_steps", "train.global_batch_size")


def changed(before: RunConfig, after: RunConfig) -> dict[str, Any]:
    """Dotted keys whose values differ → the new value."""
    old, new = flatten(before.model_dump(mode="json")), flatten(after.model_dump(mode="json"))
    return {key: new.get(key) for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)}


def check_changes(before: RunConfig, after: RunConfig, rows: int | None, done: int) -> list[Problem]:
    """Refuse what would change the numbers; a notice where only rounding may differ.

    Args:
        rows: of the training split, where known.
        done: optimizer steps in the checkpoint.
    """
    problems = []
    for key, value in changed(before, after).items():
        if ROUNDING.get(key):
            problems.append(
                Problem(
                    key, value, f"{ROUNDING[key]}: from here on results may differ in the last digits", "", "notice"
                )
            )
        elif key in LENGTH:
            problems += _length(before, after, key, rows, done)
        elif key not in HARMLESS and key not in ROUNDING and not key.startswith("cluster."):
            problems.append(
                Problem(
                    key,
                    value,
                    "this changes what the run computes; the steps so far were made without it",
                    "leave it out, or start a new run",
                )
            )
    return problems


def _length(before: RunConfig, after: RunConfig, key: str, rows: int | None, done: int) -> list[Problem]:
    value = getattr(after.train, key.partition(".")[2])
    if rows is None:
        return [Problem(key, value, "the number of training rows is not known yet", "leave it out, or start a new run")]
    old, new = plan.total_steps(rows, before), plan.total_steps(rows, after)
    if new < done:
        return [Problem(key, value, f"the checkpoint has {done} optimizer steps, this means {new}", "leave it out")]
    if old != new and (schedule_of(after.scheduler).needs_total or after.scheduler.warmup_ratio is not None):
        why = (
            f"scheduler={after.scheduler.name} was planned over {old} optimizer steps, not {new}: the steps so far "
            "would have had other learning rates"
        )
        return [Problem(key, value, why, "leave it out, or start a new run (scheduler=constant could be prolonged)")]
    return []


def keep_global_batch(before: RunConfig, after: RunConfig, typed: frozenset[str]) -> list[Problem]:
    """Fit micro batch and accumulation, in place, so that the rows of an optimizer step stay as many as they were."""
    wanted, ranks = plan.global_batch_size(before), plan.data_parallel_size(after)
    train, world = after.train, plan.world_size(after)
    if world != plan.world_size(before) and "launcher.omp_num_threads" not in typed:
        after.launcher.omp_num_threads = max(1, machine.physical_cores() // world)
    if not typed & set(BATCH) and plan.global_batch_size(after) != wanted:
        fitting = _split(wanted, ranks, train.micro_batch_size)
        if fitting is None:
            return [
                Problem(
                    "launcher.num_processes",
                    ranks,
                    f"the global batch of {wanted} rows does not divide by {ranks} ranks",
                    "use a number of ranks that divides it",
                )
            ]
        train.micro_batch_size, train.gradient_accumulation_steps = fitting
    if plan.global_batch_size(after) != wanted:
        product = (
            f"{train.micro_batch_size} × {train.gradient_accumulation_steps} accumulated × {ranks} ranks = "
            f"{plan.global_batch_size(after)}"
        )
        why = f"the run's global batch is {wanted} rows, this would be {product}"
        return [
            Problem(
                "train.micro_batch_size",
                train.micro_batch_size,
                why,
                "leave the batch out: it is fitted to the number of ranks",
            )
        ]
    return []


def _split(wanted: int, ranks: int, largest_micro_batch: int) -> tuple[int, int] | None:
    """Micro batch and accumulation with micro × accumulation × ranks = wanted, the micro batch as large as it was
    allowed to be.
    """
    if wanted % ranks:
        return None
    per_rank = wanted // ranks
    micro = next(size for size in range(min(largest_micro_batch, per_rank), 0, -1) if per_rank % size == 0)
    return micro, per_rank // micro
