"""Rows of a table: the repeats of one cell folded into means, with a label that tells rows apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from runner.report.intervals import Estimate, Ratio, estimate
from runner.report.reading import dig, integer, mapping, number, text
from runner.report.run_view import Run

# Keys that do not change what is computed, or that tell repeats of one cell apart.
_NOT_COMPARED = ("train.seed", "note", "cache_dir", "dataset.rows.", "launcher.main_process_port", "sweep.", "fit.")
# Keys that say how a run is watched and kept, not how it trains: rows are named by them only where nothing else
# differs.
_BOOKKEEPING = (
    "train.log_every", "train.save", "checkpoint.", "launcher.start_timeout", "launcher.hang_timeout",
    "launcher.max_restarts", "tracker.", "recipe.metric_for_best", "recipe.greater_is_better",
)  # fmt: skip
# Keys whose effect a row shows already in its method and batch columns.
_SHOWN_IN_COLUMNS = (
    "launcher.name", "zero.", "offload.", "fsdp.", "train.micro_batch_size", "train.global_batch_size",
    "train.gradient_accumulation_steps", "recipe.batch_by_launcher", "optimizer.owner", "scheduler.owner",
    "launcher.config_file",
)  # fmt: skip
# What a researcher varies most stands first in a label, under its short name.
_FIRST_IN_LABELS = (
    "optimizer.lr", "train.seed", "optimizer.", "scheduler.", "precision.", "model.", "dataset.", "task.", "train.",
)  # fmt: skip
_SHORT = {"optimizer.lr": "lr", "train.seed": "seed"}
_LABEL_DIFFERENCES = 3


@dataclass(frozen=True)
class Row:
    """One line of a table: `runs` are the repeats of one cell, oldest repeat first.

    Times are seconds per epoch. Estimates are over completed runs; a row without any shows what an
    unfinished run has so far, and nothing for a failed one.

    Attributes:
        unjudged: why there is a time and yet no speed-up, in a word or two.
        planned: runs that the cell was to have in its sweep; None for runs by hand.
    """

    label: str
    method: str
    runs: tuple[Run, ...]
    train_seconds: Estimate | None
    eval_seconds: Estimate | None
    metrics: dict[str, Estimate]
    peak_memory_bytes: int | None
    largest_micro_batch: int | None
    speed_up: Ratio | None = None
    is_baseline: bool = False
    unjudged: str = ""
    planned: int | None = None

    @cached_property
    def first(self) -> Run:
        """The run that stands for the row where one run must: the first completed one, else the first."""
        return next((run for run in self.runs if run.completed), self.runs[0])

    @cached_property
    def completed_runs(self) -> tuple[Run, ...]:
        """The repeats whose numbers may be compared."""
        return tuple(run for run in self.runs if run.completed)

    @property
    def count(self) -> str:
        """How many runs the numbers are over: `3`, or `2 of 3` where others are missing or failed."""
        done, wanted = len(self.completed_runs), max(self.planned or 0, len(self.runs))
        return str(done) if done == wanted else f"{done} of {wanted}"

    @property
    def status(self) -> str:
        """`completed` and the like, or `2 of 3 completed` when the repeats disagree."""
        statuses = {run.status for run in self.runs}
        if len(statuses) == 1:
            return self.runs[0].status
        return f"{len(self.completed_runs)} of {len(self.runs)} completed"

    @property
    def learning_rate(self) -> float | None:
        """Peak learning rate."""
        return number(dig(self.first.raw, "config.optimizer.lr"))

    @property
    def seeds(self) -> list[int]:
        """Seeds of the completed runs, in the order of the repeats."""
        return [run.seed for run in self.completed_runs if run.seed is not None]

    @property
    def reason(self) -> str:
        """The different reasons of the repeats, in one text."""
        return "; ".join(dict.fromkeys(run.reason for run in self.runs if run.reason))


def train_seconds_of(row: Row) -> list[float]:
    """Seconds per epoch of each completed run of a row."""
    values = (run.train_seconds_per_epoch for run in row.completed_runs)
    return [value for value in values if value is not None]


def compared_config(run: Run) -> dict[str, Any]:
    """The run's flat configuration without keys that do not change what is computed."""
    return {key: value for key, value in run.flat_config.items() if _is_compared(key)}


@lru_cache(maxsize=4096)
def _is_compared(key: str) -> bool:
    return not key.startswith(_NOT_COMPARED)


@lru_cache(maxsize=4096)
def _is_beside_method(key: str) -> bool:
    return not key.startswith((*_NOT_COMPARED, *_SHOWN_IN_COLUMNS, *_BOOKKEEPING))


def fold(runs: Iterable[Run]) -> tuple[list[Row], int]:
    """Rows of folded repeats in order of appearance, and how many runs a later one has superseded.

    Runs without a sweep cell are never folded: that two runs by hand were meant as repeats is not recorded.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_cell_key(run), []).append(run)
    rows, superseded = [], 0
    for group in (part for runs_of_cell in groups.values() for part in _by_data(runs_of_cell)):
        kept = _newest_of_each_repeat(group)
        superseded += len(group) - len(kept)
        rows.append(row_of(kept))
    return rows, superseded


def _cell_key(run: Run) -> str:
    """What repeats of one cell share, in whichever sweep they ran: configuration without the seed,
    purpose, and code.
    """
    cell = run.raw.get("cell")
    config = mapping(run.raw.get("config"))
    if not isinstance(cell, Mapping) or not config:
        return f"run {run.folder}"
    code = cell.get("code") or dig(run.raw, "code.git_commit")
    return json.dumps([cell.get("purpose"), code, compared_config(run)], sort_keys=True, default=str)


def _by_data(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of one cell apart by data fingerprint; a run that failed before it read data stays with the only one there
    is.
    """
    parts: dict[str, list[Run]] = {}
    for run in runs:
        parts.setdefault(text(dig(run.raw, "data.train.fingerprint")), []).append(run)
    return list(parts.values()) if len(parts.keys() - {""}) > 1 else [list(runs)]


def _newest_of_each_repeat(runs: Sequence[Run]) -> list[Run]:
    """One run per repeat, which its seed tells: the completed one, and among several the one that started last."""
    newest: dict[Any, Run] = {}
    for run in sorted(runs, key=lambda run: (run.completed, text(run.raw.get("started_at")))):
        newest[run.folder if run.seed is None else run.seed] = run
    return sorted(newest.values(), key=lambda run: (integer(dig(run.raw, "cell.repeat")) or 0, run.seed or 0))


def row_of(runs: Sequence[Run]) -> Row:
    """Fold the repeats of one cell into a row."""
    done = [run for run in runs if run.completed]
    counted = done or [run for run in runs if run.status in ("running", "preempted")]
    peaks = [run.peak_memory_bytes for run in counted if run.peak_memory_bytes is not None]
    found = [run.largest_micro_batch for run in runs if run.largest_micro_batch is not None]
    return Row(
        label=runs[0].method,
        method=runs[0].method,
        runs=tuple(runs),
        train_seconds=_estimate_of(run.train_seconds_per_epoch for run in counted),
        eval_seconds=_estimate_of(run.eval_seconds_per_epoch for run in counted),
        metrics=_metrics(counted),
        peak_memory_bytes=max(peaks, default=None),
        largest_micro_batch=min(found, default=None),
    )


def _estimate_of(values: Iterable[float | None]) -> Estimate | None:
    return estimate([value for value in values if value is not None])


def _metrics(runs: Sequence[Run]) -> dict[str, Estimate]:
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    estimates = {name: _estimate_of(run.metrics.get(name) for run in runs) for name in names}
    return {name: value for name, value in estimates.items() if value is not None}


def label_rows(rows: Sequence[Row], shared_batch: bool) -> list[Row]:
    """Give every row a label that no other row of the table has.

    A row is called by its method; where that is not enough, by the batch (unless the table shares it),
    then by the configuration keys that differ, and at last by the run's name.
    """
    labels = [row.method for row in rows]
    if not shared_batch:
        labels = _extended(labels, [_batch_text(row.first) for row in rows])
    labels = _extended(labels, _differences(rows, labels))
    labels = _extended(labels, [row.first.run_id for row in rows])
    labels = _extended(labels, [str(row.first.folder) for row in rows])
    return [replace(row, label=label) for row, label in zip(rows, labels, strict=True)]


def _extended(labels: list[str], additions: list[str]) -> list[str]:
    """Labels, with the addition where a label is not unique and there is something to add."""
    counts = Counter(labels)
    return [
        f"{label}, {addition}" if counts[label] > 1 and addition else label
        for label, addition in zip(labels, additions, strict=True)
    ]


def _batch_text(run: Run) -> str:
    return f"batch {run.global_batch_size}" if run.global_batch_size is not None else ""


def _differences(rows: Sequence[Row], labels: Sequence[str]) -> list[str]:
    """For each row whose label is shared: up to three `key=value` in which those rows differ."""
    texts = [""] * len(rows)
    counts = Counter(labels)
    for label in (label for label, count in counts.items() if count > 1):
        members = [index for index, other in enumerate(labels) if other == label]
        configs = [_with_seed(rows[index]) for index in members]
        keys = [key for key in differing_keys(configs) if not key.startswith(_SHOWN_IN_COLUMNS)]
        telling = [key for key in keys if not key.startswith(_BOOKKEEPING)] or keys
        telling = sorted(telling, key=_place_in_label)[:_LABEL_DIFFERENCES]
        for index, config in zip(members, configs, strict=True):
            texts[index] = ", ".join(f"{_SHORT.get(key, key)}={value_text(config.get(key))}" for key in telling)
    return texts


def _place_in_label(key: str) -> int:
    return next((place for place, start in enumerate(_FIRST_IN_LABELS) if key.startswith(start)), len(_FIRST_IN_LABELS))


def _with_seed(row: Row) -> dict[str, Any]:
    """The row's configuration; with its seed where it is one run, and not the mean over several seeds."""
    config = compared_config(row.first)
    return {**config, "train.seed": row.first.seed} if len(row.runs) == 1 else config


def setting_beside_method(run: Run) -> str:
    """All that is configured but the method and how its batch is made up, as text: equal where methods can be
    compared.
    """
    return json.dumps({key: value for key, value in run.flat_config.items() if _is_beside_method(key)}, default=str)


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose value is not the same in all configurations; a missing key counts as a value."""
    missing = object()
    keys = dict.fromkeys(key for config in configs for key in config)
    columns = ((key, [config.get(key, missing) for config in configs]) for key in keys)
    return [key for key, values in columns if values.count(values[0]) < len(values)]


def value_text(value: object) -> str:
    """A configuration value as a user would type it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    return text(shown) or " ".join(shown.split())
