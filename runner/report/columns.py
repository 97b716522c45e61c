"""The columns as text: one definition for the terminal, markdown, LaTeX and the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.report.aggregation import Row
from runner.report.intervals import Estimate, Ratio
from runner.report.run_view import Run
from runner.report.tables import Comparison, Layout, Table, largest_batch, natural_order

NOTHING = "–"
# Names for --columns and --sort; beside them stands each metric's own.
NAMES = ("method", "batch", "lr", "seed", "n", "train", "eval", "metrics", "memory", "speed-up", "status")
_SHOWN_IF_ASKED = ("lr", "seed")


class UnknownColumn(Exception):
    """A name that is no column; the message is one line for the user."""


@dataclass(frozen=True)
class Column:
    """A heading with the text of every row; `numeric` columns are aligned to the right; `name` is that of --columns."""

    heading: str
    cells: tuple[str, ...]
    numeric: bool = True
    name: str = ""


def table_columns(table: Table) -> list[Column]:
    """Method | batch | n | train s/epoch | eval s/epoch | metrics | peak memory | speed-up | status, or those asked
    for.
    """
    made = {column.name: column for column in _all_columns(table)}
    asked = table.layout.columns
    if asked is None:
        return [column for name, column in made.items() if name not in _SHOWN_IF_ASKED]
    names = [part for name in asked for part in (table.metric_names if name == "metrics" else [name])]
    return [made[name] for name in dict.fromkeys(["method", *names]) if name in made]


def _all_columns(table: Table) -> list[Column]:
    rows, std = table.rows, table.layout.std
    columns = [
        Column("Method", tuple(row.label for row in rows), numeric=False, name="method"),
        _batch_column(table),
        Column("lr", tuple(_plain(row.learning_rate) for row in rows), name="lr"),
        Column("seed", tuple(" ".join(map(str, row.seeds)) or NOTHING for row in rows), name="seed"),
        Column("n", tuple(row.count for row in rows), name="n"),
        Column("train s/epoch", tuple(seconds_text(row.train_seconds, std) for row in rows), name="train"),
        Column("eval s/epoch", tuple(seconds_text(row.eval_seconds, std) for row in rows), name="eval"),
        *(
            Column(name, tuple(metric_text(row.metrics.get(name), std) for row in rows), name=name)
            for name in table.metric_names
        ),
        Column("peak memory", tuple(bytes_text(row.peak_memory_bytes) for row in rows), name="memory"),
    ]
    if table.kind != "runs":
        columns.append(Column("speed-up", tuple(speed_up_text(row) for row in rows), name="speed-up"))
    columns.append(Column("status", tuple(status_text(row) for row in rows), numeric=False, name="status"))
    return columns


def arranged(comparison: Comparison, layout: Layout) -> Comparison:
    """The comparison with the columns and the order that were asked for.

    Raises:
        UnknownColumn: for a name that no table has.
    """
    metrics = list(dict.fromkeys(name for table in comparison.tables for name in table.metric_names))
    known = [*NAMES, *metrics]
    for name in (*(layout.columns or ()), *([layout.sort.removeprefix("-")] if layout.sort else [])):
        if name not in known or (name == "metrics" and name == layout.sort.removeprefix("-")):
            raise UnknownColumn(f"{name}: there is no such column; columns are {', '.join(known)}")
    tables = (replace(table, layout=layout, rows=_sorted(table.rows, layout.sort)) for table in comparison.tables)
    return replace(comparison, tables=tuple(tables))


def _sorted(rows: Sequence[Row], sort: str) -> tuple[Row, ...]:
    """Rows by a column, with `-` before its name from large to small; rows without a value last."""
    if not sort:
        return tuple(rows)
    value = _value_of(sort.removeprefix("-"))
    known = [row for row in rows if value(row) is not None]
    unknown = [row for row in rows if value(row) is None]
    return (*sorted(known, key=value, reverse=sort.startswith("-")), *unknown)


def _value_of(name: str) -> Callable[[Row], Any]:
    """What a column sorts by: numbers as numbers."""
    values: dict[str, Callable[[Row], Any]] = {
        "method": lambda row: natural_order(row.label),
        "batch": lambda row: row.first.global_batch_size,
        "lr": lambda row: row.learning_rate,
        "seed": lambda row: row.seeds or None,
        "n": lambda row: len(row.completed_runs),
        "train": lambda row: row.train_seconds.mean if row.train_seconds else None,
        "eval": lambda row: row.eval_seconds.mean if row.eval_seconds else None,
        "memory": lambda row: row.peak_memory_bytes,
        "speed-up": lambda row: 1.0 if row.is_baseline else row.speed_up.value if row.speed_up else None,
        "status": lambda row: row.status,
    }
    return values.get(name, lambda row: row.metrics[name].mean if name in row.metrics else None)


def _batch_column(table: Table) -> Column:
    if table.kind == "largest":
        return Column("largest micro batch", tuple(_plain(largest_batch(row)) for row in table.rows), name="batch")
    return Column("batch", tuple(batch_text(row.first) for row in table.rows), name="batch")


def _plain(value: float | None) -> str:
    return NOTHING if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def batch_text(run: Run) -> str:
    """Global batch size in rows, and how it comes about: micro batch × accumulation × replicas."""
    parts = (run.micro_batch_size, run.gradient_accumulation_steps, run.replicas)
    if run.global_batch_size is None:
        return f"micro {run.micro_batch_size}" if run.micro_batch_size is not None else NOTHING
    if any(part is None for part in parts):
        return str(run.global_batch_size)
    return f"{run.global_batch_size} = {'×'.join(str(part) for part in parts)}"


def seconds_text(value: Estimate | None, std: bool = False) -> str:
    """Seconds with three or so figures, and the half interval to the same place."""
    if value is None:
        return NOTHING
    places = 3 if abs(value.mean) < 1 else 2 if abs(value.mean) < 100 else 1
    return _with_interval(value, places, std)


def metric_text(value: Estimate | None, std: bool = False) -> str:
    """A score to four places, or two when it is 10 or more."""
    return NOTHING if value is None else _with_interval(value, 4 if abs(value.mean) < 10 else 2, std)


def _with_interval(value: Estimate, places: int, std: bool) -> str:
    interval = "" if value.half_width is None else f" ± {value.half_width:.{places}f}"
    deviation = f" (std {value.deviation:.{places}f})" if std and value.deviation is not None else ""
    return f"{value.mean:.{places}f}{interval}{deviation}"


def bytes_text(value: float | None) -> str:
    """Bytes in the largest binary unit that leaves at least 1."""
    if value is None:
        return NOTHING
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= size:
            scaled = value / size
            return f"{scaled:.2f} {unit}" if abs(scaled) < 100 else f"{scaled:.0f} {unit}"
    return f"{value:.0f} B"


def speed_up_text(row: Row) -> str:
    """`baseline`, a ratio with its interval, `indistinguishable`, `drift`, or a ratio that one run cannot secure."""
    if row.is_baseline:
        return "baseline"
    if row.unjudged:
        return row.unjudged
    return NOTHING if row.speed_up is None else ratio_text(row.speed_up)


def ratio_text(ratio: Ratio) -> str:
    """A ratio with its 95 % interval; one whose interval holds 1 is called indistinguishable."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}× (no interval)"
    interval = f"({ratio.low:.2f}–{ratio.high:.2f})"
    return f"{ratio.value:.2f}× {interval}" if ratio.distinguishable else f"indistinguishable {interval}"


def status_text(row: Row) -> str:
    """The status, and why, in one line."""
    return f"{row.status}: {row.reason}" if row.reason else row.status
