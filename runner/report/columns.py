"""The classic columns as text: one definition for the terminal, markdown and the page."""

from __future__ import annotations

from dataclasses import dataclass

from runner.report.aggregation import Row
from runner.report.intervals import Estimate, Ratio
from runner.report.run_view import Run
from runner.report.tables import Table, largest_batch

NOTHING = "–"


@dataclass(frozen=True)
class Column:
    """A heading with the text of every row; `numeric` columns are aligned to the right."""

    heading: str
    cells: tuple[str, ...]
    numeric: bool = True


def table_columns(table: Table) -> list[Column]:
    """Method | batch | n | train s/epoch | eval s/epoch | metrics | peak memory | speed-up | status."""
    rows = table.rows
    columns = [
        Column("Method", tuple(row.label for row in rows), numeric=False),
        _batch_column(table),
        Column("n", tuple(row.count for row in rows)),
        Column("train s/epoch", tuple(seconds_text(row.train_seconds) for row in rows)),
        Column("eval s/epoch", tuple(seconds_text(row.eval_seconds) for row in rows)),
        *(Column(name, tuple(metric_text(row.metrics.get(name)) for row in rows)) for name in table.metric_names),
        Column("peak memory", tuple(bytes_text(row.peak_memory_bytes) for row in rows)),
    ]
    if table.kind != "runs":
        columns.append(Column("speed-up", tuple(speed_up_text(row) for row in rows)))
    columns.append(Column("status", tuple(status_text(row) for row in rows), numeric=False))
    return columns


def _batch_column(table: Table) -> Column:
    if table.kind == "largest":
        return Column("largest micro batch", tuple(_or_nothing(largest_batch(row)) for row in table.rows))
    return Column("batch", tuple(batch_text(row.first) for row in table.rows))


def _or_nothing(value: int | None) -> str:
    return NOTHING if value is None else str(value)


def batch_text(run: Run) -> str:
    """Global batch size in rows, and how it comes about: micro batch × accumulation × ranks."""
    parts = (run.micro_batch_size, run.gradient_accumulation_steps, run.world_size)
    if run.global_batch_size is None:
        return f"micro {run.micro_batch_size}" if run.micro_batch_size is not None else NOTHING
    if any(part is None for part in parts):
        return str(run.global_batch_size)
    return f"{run.global_batch_size} = {'×'.join(str(part) for part in parts)}"


def seconds_text(value: Estimate | None) -> str:
    """Seconds with three or so figures, and the half interval to the same place."""
    if value is None:
        return NOTHING
    places = 3 if abs(value.mean) < 1 else 2 if abs(value.mean) < 100 else 1
    return _with_interval(value, places)


def metric_text(value: Estimate | None) -> str:
    """A score to four places, or two when it is 10 or more."""
    return NOTHING if value is None else _with_interval(value, 4 if abs(value.mean) < 10 else 2)


def _with_interval(value: Estimate, places: int) -> str:
    interval = "" if value.half_width is None else f" ± {value.half_width:.{places}f}"
    return f"{value.mean:.{places}f}{interval}"


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
