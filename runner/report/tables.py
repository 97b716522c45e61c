"""Many runs → tables: matched batch, each at its largest batch, and everything that is in neither."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from runner.report.aggregation import Row, fold, label_rows, setting_beside_method, train_seconds_of
from runner.report.drift import could_be_drift, drift_sentence
from runner.report.fairness import Fairness, check_fairness
from runner.report.intervals import speed_up
from runner.report.reading import mapping, number
from runner.report.run_view import Run
from runner.report.sweep_lists import PlannedRun, missing_notes, planned_repeats

Kind = Literal["matched", "largest", "runs"]
Workload = tuple[str, str, str]

DEFINITIONS = (
    "train s/epoch: wall seconds of the training part of an epoch, mean over a run's epochs; evaluation, saving and "
    "data preparation are not in it.",
    "Peak memory: of the rank and the run that needed most; allocated by torch on a GPU, resident set on a CPU. ± is "
    "a 95 % t interval over repeats; without ± there was one run.",
    "n: completed runs that the row's numbers are over; `2 of 3` where others failed or are missing.",
    "Speed-up: baseline time / time, ratio of geometric means with Welch's 95 % interval of the logarithms; "
    "indistinguishable when that interval holds 1. Baseline: DDP, else the first completed row, with the same settings "
    "beside the method.",
)
_BY_DESIGN_AT_LARGEST = frozenset({"global batch size", "learning-rate curve", "data order"})
_PHASE_TOLERANCE = 0.05
DRIFT, POSSIBLE_DRIFT = "drift", "perhaps drift"
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_NUMBER_PARTS = re.compile(f"({_NUMBER.pattern})")


@dataclass(frozen=True)
class Layout:
    """What a user asked to see: names of columns (None: all), by which one rows are sorted, standard deviations."""

    columns: tuple[str, ...] | None = None
    sort: str = ""
    std: bool = False


@dataclass(frozen=True)
class Table:
    """One table. Only `matched` and `largest` compare, and only they have a fairness check.

    Attributes:
        drift: why no row is called faster than another, where the machine changed meanwhile; else empty.
    """

    kind: Kind
    title: str
    workload: Workload | None
    rows: tuple[Row, ...]
    fairness: Fairness | None
    notes: tuple[str, ...]
    drift: str = ""
    layout: Layout = Layout()

    @property
    def metric_names(self) -> list[str]:
        """Metrics of any row: the one that judges the recipe first, then in order of appearance."""
        names = dict.fromkeys(name for row in self.rows for name in row.metrics)
        return sorted(names, key=lambda name: name not in self._judging)

    @property
    def _judging(self) -> set[str]:
        recipes = [mapping(mapping(row.first.raw.get("config")).get("recipe")) for row in self.rows]
        return {str(recipe.get("metric_for_best")) for recipe in recipes}


@dataclass(frozen=True)
class Comparison:
    """Everything a report shows: `runs` as read, `tables` made from them, `notes` on what was left out."""

    tables: tuple[Table, ...]
    runs: tuple[Run, ...]
    roots: tuple[Path, ...]
    notes: tuple[str, ...]
    made_at: datetime


def compare(runs: Sequence[Run], roots: Sequence[Path] = (), planned: Sequence[PlannedRun] = ()) -> Comparison:
    """Sort runs into tables. Every run that is no trial of `fit` is in at least one.

    Args:
        planned: what the sweeps among the roots were to consist of.
    """
    trials = [run for run in runs if run.is_trial]
    folded, superseded = fold(run for run in runs if not run.is_trial)
    counts = planned_repeats(planned)
    rows = [replace(row, planned=max((counts.get(run.cell_hash, 0) for run in row.runs), default=0)) for row in folded]
    by_workload: dict[Workload, list[Row]] = {}
    for row in rows:
        if row.first.workload:
            by_workload.setdefault(row.first.workload, []).append(row)
    tables: list[Table] = []
    for workload, members in by_workload.items():
        tables += _matched_tables(workload, members)
        tables += _largest_table(workload, members)
    shown = {id(run) for table in tables for row in table.rows for run in row.runs}
    rest = [row for row in rows if not any(id(run) in shown for run in row.runs)]
    tables += _remaining_tables(rest, bool(tables))
    notes = (*missing_notes(planned, _status_of(runs)), *_left_out(len(trials), superseded))
    return Comparison(tuple(tables), tuple(runs), tuple(roots), notes, datetime.now(UTC))


def _status_of(runs: Sequence[Run]) -> dict[str, str]:
    """By a run's hash: `completed` where any of its records is, else the status of the newest."""
    found: dict[str, Run] = {}
    for run in runs:
        held = found.get(run.cell_hash)
        if held is None or (run.completed, str(run.raw.get("started_at"))) > (
            held.completed,
            str(held.raw.get("started_at")),
        ):
            found[run.cell_hash] = run
    return {key: run.status for key, run in found.items() if key}


def _left_out(trials: int, superseded: int) -> tuple[str, ...]:
    notes = []
    if trials:
        notes.append(f"{trials} trials of fit are not rows: they are a few steps long.")
    if superseded:
        notes.append(f"{superseded} earlier runs of the same cell and seed are superseded by later ones.")
    return tuple(notes)


def workload_text(workload: Workload | None) -> str:
    """`model on data set (recipe)`."""
    return f"{workload[1]} on {workload[2]} ({workload[0]})" if workload else "unknown workload"


def _matched_tables(workload: Workload, rows: Sequence[Row]) -> list[Table]:
    """One table for each global batch size that at least two methods were run with."""
    sizes = sorted({row.first.global_batch_size for row in rows if row.first.global_batch_size is not None})
    tables = []
    for size in sizes:
        members = [row for row in rows if row.first.global_batch_size == size]
        if len({row.method for row in members}) > 1:
            title = f"Matched batch: global batch {size}, {workload_text(workload)}"
            tables.append(_comparing_table("matched", title, workload, members))
    return tables


def _largest_table(workload: Workload, rows: Sequence[Row]) -> list[Table]:
    """Each method at its largest micro batch, when there are methods with different ones or `fit` found them."""
    best = largest_rows(rows)
    sizes = {largest_batch(row) for row in best}
    searched = any(row.largest_micro_batch is not None for row in best)
    if len(best) < 2 or not (searched or len(sizes) > 1):
        return []
    title = f"Each at its largest batch, {workload_text(workload)}"
    return [_comparing_table("largest", title, workload, best)]


def largest_batch(row: Row) -> int | None:
    """The micro batch `fit` found, else the one the row was run with; rows per device."""
    return row.largest_micro_batch if row.largest_micro_batch is not None else row.first.micro_batch_size


def largest_rows(rows: Sequence[Row]) -> list[Row]:
    """For each method its completed row with the largest micro batch (then the faster one)."""
    best: dict[str, Row] = {}
    for row in rows:
        if row.completed_runs and largest_batch(row) is not None:
            held = best.get(row.method)
            if held is None or _size_order(row) > _size_order(held):
                best[row.method] = row
    return list(best.values())


def _size_order(row: Row) -> tuple[bool, int, float]:
    seconds = row.train_seconds.mean if row.train_seconds else float("inf")
    return (row.largest_micro_batch is not None, largest_batch(row) or 0, -seconds)


def _comparing_table(kind: Kind, title: str, workload: Workload, rows: Sequence[Row]) -> Table:
    labelled = _labelled_in_order(rows, shared_batch=kind == "matched")
    expected = _BY_DESIGN_AT_LARGEST if kind == "largest" else frozenset()
    drift = drift_sentence(labelled)
    rated = _with_speed_ups(labelled, drifting=bool(drift))
    notes = notes_on(labelled, kind)
    possible = [row.label for row in rated if row.unjudged == POSSIBLE_DRIFT]
    if possible:
        notes += (
            f"Run one after the other, not in turns, so that a drift of the machine could explain the difference "
            f"from the baseline: {', '.join(possible)}.",
        )
    return Table(kind, title, workload, tuple(rated), check_fairness(labelled, expected), notes, drift)


def _labelled_in_order(rows: Sequence[Row], shared_batch: bool) -> list[Row]:
    """Rows with their labels: DDP first, then by method, batch and what the labels say, numbers as numbers."""
    return sorted(
        label_rows(_in_order(rows), shared_batch),
        key=lambda row: (*_order(row), natural_order(row.label)),
    )


def _remaining_tables(rows: Sequence[Row], others: bool) -> list[Table]:
    """Rows that no comparison holds, by workload; those of unknown workload (unreadable records) last."""
    workloads = sorted({row.first.workload for row in rows}, key=lambda workload: (workload is None, workload or ()))
    tables = []
    for workload in workloads:
        labelled = _labelled_in_order([row for row in rows if row.first.workload == workload], shared_batch=False)
        title = f"{'Other runs' if others else 'Runs'}, {workload_text(workload)}"
        tables.append(Table("runs", title, workload, tuple(labelled), None, notes_on(labelled, "runs")))
    return tables


def _in_order(rows: Sequence[Row]) -> list[Row]:
    """DDP first, then by method; records that could not be read last."""
    return sorted(rows, key=_order)


def _order(row: Row) -> tuple[Any, ...]:
    return (row.status == "unreadable", row.method != "DDP", row.method, row.first.global_batch_size or 0)


def natural_order(label: str) -> tuple[tuple[int, float, str], ...]:
    """A sort key that takes the numbers in a text as numbers: 9 before 10, 5e-05 before 0.0001."""
    return tuple(
        (0, float(part), "") if _NUMBER.fullmatch(part) else (1, 0.0, part)
        for part in _NUMBER_PARTS.split(label)
        if part
    )


def _with_speed_ups(rows: Sequence[Row], drifting: bool) -> list[Row]:
    """Ratios against the baseline: the first completed row (DDP where there is one) that differs in
    the method alone.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(setting_beside_method(row.first), []).append(row)
    rated: dict[int, Row] = {}
    for group in groups.values():
        baseline = next((row for row in group if train_seconds_of(row)), None)
        if baseline is not None and len({row.method for row in group}) > 1:
            rated |= {id(row): _rated(row, baseline, rows, drifting) for row in group}
    return [rated.get(id(row), row) for row in rows]


def _rated(row: Row, baseline: Row, rows: Sequence[Row], drifting: bool) -> Row:
    if row is baseline:
        return replace(row, is_baseline=True)
    ratio = speed_up(train_seconds_of(baseline), train_seconds_of(row))
    if ratio is None:
        return row
    if drifting:
        return replace(row, unjudged=DRIFT)
    if ratio.distinguishable and could_be_drift(baseline, row, rows):
        return replace(row, unjudged=POSSIBLE_DRIFT)
    return replace(row, speed_up=ratio)


def notes_on(rows: Sequence[Row], kind: Kind) -> tuple[str, ...]:
    """What a reader must know about these rows besides the numbers."""
    runs = [run for row in rows for run in row.runs]
    notes = []
    if any(run.generated_data for run in runs):
        notes.append(
            "The data are the runner's generated sample: times are real, scores say nothing about a benchmark."
        )
    partial = [row.label for row in rows if any(run.partial_epoch for run in row.completed_runs)]
    if partial:
        notes.append(f"Epochs cut short (s/epoch is not that of a whole epoch): {', '.join(partial)}.")
    loose = [row.label for row in rows if any(_phases_do_not_add_up(run) for run in row.completed_runs)]
    if loose:
        notes.append(f"Phases and wall time differ by more than 5 %: {', '.join(loose)}.")
    if kind == "largest":
        notes += _how_largest_was_found(rows)
    return tuple(notes)


def _phases_do_not_add_up(run: Run) -> bool:
    wall = number(run.raw.get("wall_seconds"))
    phases = [number(value) or 0.0 for value in mapping(run.raw.get("phases")).values()]
    return bool(wall) and bool(phases) and abs(sum(phases) - (wall or 0.0)) > _PHASE_TOLERANCE * (wall or 0.0)


def _how_largest_was_found(rows: Sequence[Row]) -> list[str]:
    tried = [row.label for row in rows if row.largest_micro_batch is None]
    return [f"Largest batch that was tried and ran, not searched for by fit: {', '.join(tried)}."] if tried else []
