"""Many runs → tables: matched batch, each at its largest batch, and everything that is in neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from runner.report.aggregation import Row, fold, label_rows, train_seconds_of
from runner.report.fairness import Fairness, check_fairness
from runner.report.intervals import speed_up
from runner.report.reading import mapping, number
from runner.report.run_view import Run

Kind = Literal["matched", "largest", "runs"]
Workload = tuple[str, str, str]

DEFINITIONS = (
    "train s/epoch: wall seconds of the training part of an epoch, mean over a run's epochs; evaluation, saving and "
    "data preparation are not in it.",
    "Peak memory: of the rank and the run that needed most; allocated by torch on a GPU, resident set on a CPU. ± is "
    "a 95 % t interval over repeats; without ± there was one run.",
    "Speed-up: baseline time / time, ratio of geometric means with Welch's 95 % interval of the logarithms; "
    "indistinguishable when that interval holds 1.",
)
_BY_DESIGN_AT_LARGEST = frozenset({"global batch size", "learning-rate curve", "data order"})
_PHASE_TOLERANCE = 0.05


@dataclass(frozen=True)
class Table:
    """One table. Only `matched` and `largest` compare, and only they have a fairness check."""

    kind: Kind
    title: str
    workload: Workload | None
    rows: tuple[Row, ...]
    fairness: Fairness | None
    notes: tuple[str, ...]

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


def compare(runs: Sequence[Run], roots: Sequence[Path] = ()) -> Comparison:
    """Sort runs into tables. Every run that is no trial of `fit` is in at least one."""
    trials = [run for run in runs if run.is_trial]
    rows, superseded = fold(run for run in runs if not run.is_trial)
    workloads = dict.fromkeys(row.first.workload for row in rows if row.first.workload)
    tables: list[Table] = []
    for workload in workloads:
        members = [row for row in rows if row.first.workload == workload]
        tables += _matched_tables(workload, members)
        tables += _largest_table(workload, members)
    shown = {id(run) for table in tables for row in table.rows for run in row.runs}
    rest = [row for row in rows if not any(id(run) in shown for run in row.runs)]
    tables += _remaining_tables(rest, bool(tables))
    notes = _left_out(len(trials), superseded)
    return Comparison(tuple(tables), tuple(runs), tuple(roots), notes, datetime.now(UTC))


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
    labelled = label_rows(_in_order(rows), shared_batch=kind == "matched")
    expected = _BY_DESIGN_AT_LARGEST if kind == "largest" else frozenset()
    return Table(
        kind,
        title,
        workload,
        tuple(_with_speed_ups(labelled)),
        check_fairness(labelled, expected),
        notes_on(labelled, kind),
    )


def _remaining_tables(rows: Sequence[Row], others: bool) -> list[Table]:
    """Rows that no comparison holds, by workload; those of unknown workload (unreadable records) last."""
    workloads = sorted({row.first.workload for row in rows}, key=lambda workload: (workload is None, workload or ()))
    tables = []
    for workload in workloads:
        labelled = label_rows(_in_order([row for row in rows if row.first.workload == workload]), shared_batch=False)
        title = f"{'Other runs' if others else 'Runs'}, {workload_text(workload)}"
        tables.append(Table("runs", title, workload, tuple(labelled), None, notes_on(labelled, "runs")))
    return tables


def _in_order(rows: Sequence[Row]) -> list[Row]:
    """DDP first, then by method; records that could not be read last."""
    unreadable = "unreadable"
    return sorted(
        rows,
        key=lambda row: (row.status == unreadable, row.method != "DDP", row.method, row.first.global_batch_size or 0),
    )


def _with_speed_ups(rows: Sequence[Row]) -> list[Row]:
    """Ratios against the first completed row; DDP is first where there is one."""
    baseline = next((row for row in rows if train_seconds_of(row)), None)
    if baseline is None:
        return list(rows)
    before = train_seconds_of(baseline)
    return [
        replace(row, is_baseline=True)
        if row is baseline
        else replace(row, speed_up=speed_up(before, train_seconds_of(row)))
        for row in rows
    ]


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
