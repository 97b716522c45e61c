"""One run as a comparison sees it: a typed view of a record, with None where the record says nothing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.engines import label_of
from runner.mappings import flatten
from runner.report.reading import dig, integer, integers, mapping, number, numbers, sequence, text

_FULL_EPOCH_SHARE = 0.95


@dataclass(frozen=True)
class Epoch:
    """Times and scores of one epoch; seconds are wall seconds, throughput is over all ranks."""

    epoch: float | None
    train_seconds: float | None
    eval_seconds: float | None
    train_samples_per_second: float | None
    train_tokens_per_second: float | None
    train_loss: float | None
    metrics: dict[str, float]


@dataclass(frozen=True)
class Run:
    """One record. `raw` is the record in the present schema, for facts only one reader needs."""

    folder: Path
    run_id: str
    status: str
    reason: str
    method: str
    workload: tuple[str, str, str] | None
    micro_batch_size: int | None
    gradient_accumulation_steps: int | None
    world_size: int | None
    global_batch_size: int | None
    largest_micro_batch: int | None
    is_trial: bool
    seed: int | None
    epochs: tuple[Epoch, ...]
    metrics: dict[str, float]
    peak_memory_bytes: int | None
    predicted_memory_bytes: int | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def completed(self) -> bool:
        """Whether the run ended as it should, so that its numbers may be compared."""
        return self.status == "completed"

    @property
    def replicas(self) -> int | None:
        """What saw rows of its own: ranks, or under tensor parallelism groups of them."""
        return integer(self.raw.get("data_parallel_size")) or self.world_size

    @cached_property
    def flat_config(self) -> dict[str, Any]:
        """The configuration as dotted keys."""
        return flatten(mapping(self.raw.get("config")))

    @property
    def train_seconds_per_epoch(self) -> float | None:
        """Mean over the run's epochs of the training part's wall seconds."""
        return _mean([epoch.train_seconds for epoch in self.epochs])

    @property
    def eval_seconds_per_epoch(self) -> float | None:
        """Mean over the run's evaluations of their wall seconds."""
        if not self.epochs:
            return number(dig(self.raw, "evaluations.validation.eval_seconds"))
        return _mean([epoch.eval_seconds for epoch in self.epochs])

    @property
    def test_metrics(self) -> dict[str, float]:
        """Metrics of the test split, where there is one."""
        return numbers(dig(self.raw, "test.metrics") or dig(self.raw, "evaluations.test.metrics"))

    @property
    def cell_hash(self) -> str:
        """Identity of a sweep's run; '' for runs by hand."""
        return text(dig(self.raw, "cell.hash"))

    @property
    def others_busy_cores(self) -> float | None:
        """Cores that other processes of the machine kept busy, mean over the epochs that recorded it."""
        epochs = sequence(self.raw.get("epochs"))
        return _mean([number(dig(mapping(epoch), "machine.others_busy_cores")) for epoch in epochs])

    @property
    def generated_data(self) -> bool:
        """Whether any split is one of the bundled, generated samples."""
        splits = mapping(self.raw.get("data")).values()
        return any(mapping(split).get("generated") is True for split in splits)

    @property
    def partial_epoch(self) -> bool:
        """Whether an epoch saw under 95 % of the training rows, so that s/epoch means something else."""
        rows = integer(dig(self.raw, "data.train.rows"))
        seen = [
            epoch.train_seconds * epoch.train_samples_per_second
            for epoch in self.epochs
            if epoch.train_seconds is not None and epoch.train_samples_per_second is not None
        ]
        return bool(rows) and any(samples < _FULL_EPOCH_SHARE * (rows or 0) for samples in seen)


def unreadable_run(folder: Path, reason: str) -> Run:
    """A row for a record that cannot be read: only its folder, its name and why."""
    return run_from_record({"run_id": folder.name, "status": "unreadable", "reason": reason}, folder)


def run_from_record(raw: Mapping[str, Any], folder: Path) -> Run:
    """The typed view of a record of the present schema; nothing in it is required."""
    config = mapping(raw.get("config"))
    epochs = tuple(_epoch(mapping(item)) for item in sequence(raw.get("epochs")))
    fit = raw.get("fit")
    largest = integer(dig(raw, "fit.largest_micro_batch"))
    return Run(
        folder=folder,
        run_id=text(raw.get("run_id")) or folder.name,
        status=text(raw.get("status")),
        reason=text(raw.get("reason")),
        method=text(raw.get("method")) or label_of(config),
        workload=_workload(config),
        **_batch(raw, config),
        largest_micro_batch=largest,
        is_trial=isinstance(fit, Mapping) and largest is None,
        seed=integer(dig(config, "train.seed")),
        epochs=epochs,
        metrics=_final_metrics(raw, epochs),
        peak_memory_bytes=max(integers(raw.get("peak_memory_bytes")), default=None),
        predicted_memory_bytes=max(integers(dig(raw, "memory_prediction.per_rank_bytes")), default=None),
        raw=raw,
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _epoch(raw: Mapping[str, Any]) -> Epoch:
    return Epoch(
        epoch=number(raw.get("epoch")),
        train_seconds=number(raw.get("train_seconds")),
        eval_seconds=number(raw.get("eval_seconds")),
        train_samples_per_second=number(raw.get("train_samples_per_second")),
        train_tokens_per_second=number(raw.get("train_tokens_per_second")),
        train_loss=number(raw.get("train_loss")),
        metrics=numbers(raw.get("metrics")),
    )


def _workload(config: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Recipe, model and data set by name: runs are compared only where all three agree.

    A run of `mode=evaluate` does another job than one that trains, so its recipe's name says so.
    """
    recipe, model, dataset = (text(dig(config, path)) for path in ("recipe.name", "model.name", "dataset.name"))
    if not (recipe and model and dataset):
        return None
    return (f"{recipe}, evaluation only" if config.get("mode") == "evaluate" else recipe, model, dataset)


def _batch(raw: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, int | None]:
    """Batch sizes in rows: as the record says, else from the configuration and the number of ranks."""
    micro = integer(raw.get("micro_batch_size")) or integer(dig(config, "train.micro_batch_size"))
    steps = integer(raw.get("gradient_accumulation_steps")) or integer(dig(config, "train.gradient_accumulation_steps"))
    ranks = integer(raw.get("world_size"))
    total = integer(raw.get("global_batch_size")) or integer(dig(config, "train.global_batch_size"))
    if total is None and micro and steps and ranks:
        total = micro * steps * (integer(raw.get("data_parallel_size")) or ranks)
    return {
        "micro_batch_size": micro,
        "gradient_accumulation_steps": steps,
        "world_size": ranks,
        "global_batch_size": total,
    }


def _final_metrics(raw: Mapping[str, Any], epochs: tuple[Epoch, ...]) -> dict[str, float]:
    """The record's final metrics, or those of the last epoch that has any."""
    final = numbers(raw.get("metrics"))
    if final:
        return final
    return next((epoch.metrics for epoch in reversed(epochs) if epoch.metrics), {})
