"""Tables for a terminal, with rich alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.report.aggregation import row_of
from runner.report.columns import Column, batch_text, bytes_text, metric_text, seconds_text, status_text, table_columns
from runner.report.fairness import statement
from runner.report.intervals import Estimate
from runner.report.reading import mapping, number, text
from runner.report.run_view import run_from_record
from runner.report.tables import DEFINITIONS, Comparison, Table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

GENERATED_NOTE = "The data are the runner's generated sample: the scores say nothing about a benchmark."
_PADDING = 2
_LONGEST_WORD = 12
_MOST_ROWS_LAID_OUT = 100


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print every table with its fairness statement, then what the columns mean."""
    for table in comparison.tables:
        _print_table(table, console)
        console.print()
        for line in footer(table):
            console.print(line, style="yellow" if line.startswith("DIFFERS") else "dim", markup=False, highlight=False)
        console.print()
    for line in (*comparison.notes, *DEFINITIONS):
        console.print(line, style="dim", markup=False, highlight=False)


def _print_table(table: Table, console: Console) -> None:
    """A table of usual length laid out by rich; a long one as aligned lines, which take a tenth of the time."""
    if len(table.rows) <= _MOST_ROWS_LAID_OUT:
        console.print(comparison_table(table, console.width))
        return
    columns = table_columns(table)
    widths = [max(len(text) for text in (column.heading, *column.cells)) for column in columns]
    lines = zip(*((column.heading, *column.cells) for column in columns), strict=True)
    console.print(table.title, style="bold", markup=False, highlight=False)
    shown: list[str] = []
    for line in lines:
        cells = (
            cell.rjust(width) if column.numeric else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        )
        shown.append("  ".join(cells).rstrip())
    console.out("\n".join(shown), highlight=False)  # rich costs a tenth of a millisecond a call


def footer(table: Table) -> list[str]:
    """The lines under a table: why rows have no result, its fairness statement, and its notes."""
    reasons = [
        f"{row.label}: {row.status}, {row.reason}"
        for row in table.rows
        if row.reason and len(table.rows) <= _MOST_ROWS_LAID_OUT
    ]
    drift = [table.drift] if table.drift else []
    return [*reasons, *drift, *(statement(table.fairness) if table.fairness else []), *table.notes]


def comparison_table(table: Table, width: int = 120) -> RichTable:
    """One comparison as a rich table for `width` columns; cells are plain text, whatever a label or reason holds.

    Reasons are long and a terminal is narrow: they stand in the footer.
    """
    from rich.text import Text

    grid = _grid(table.title)
    columns = _fitting(table, width)
    for column in columns:
        _add_column(grid, column.heading, column.numeric, _least_width(column))
    for index, row in enumerate(table.rows):
        style = "" if row.completed_runs else "red" if row.status in ("failed", "unreadable") else "yellow"
        grid.add_row(*(Text(column.cells[index]) for column in columns), style=style)
    return grid


def _fitting(table: Table, width: int) -> list[Column]:
    """The columns in the fullest form that fits: first intervals and units go below their values, then metrics go.

    What is left out here is in csv, json and the page.
    """
    columns: list[Column] = []
    fullest = len(table.metric_names) if table.layout.columns else 3  # what was asked for is shown
    for metrics, stacked in ((fullest, False), (fullest, True), (2, True), (1, True), (0, True)):
        hidden = set(table.metric_names[max(metrics, 0 if not table.layout.columns else fullest) :])
        columns = [
            _terminal_column(column, table, stacked) for column in table_columns(table) if column.heading not in hidden
        ]
        columns = _with_n_in_status(columns) if stacked else columns
        if sum(_least_width(column) + _PADDING for column in columns) <= width:
            break
    return columns


def _with_n_in_status(columns: list[Column]) -> list[Column]:
    """Where room is short, the number of runs stands below the status."""
    counts = next((column.cells for column in columns if column.name == "n"), None)
    if counts is None or columns[-1].name != "status":
        return columns
    cells = (f"{status}\nn = {count}" for status, count in zip(columns[-1].cells, counts, strict=True))
    kept = [column for column in columns[:-1] if column.name != "n"]
    return [*kept, replace(columns[-1], cells=tuple(cells))]


def _terminal_column(column: Column, table: Table, stacked: bool) -> Column:
    """The status without its reason; the parts of a number (interval, unit) beside each other, or stacked."""
    if column.name == "status":
        return replace(column, cells=tuple(row.status for row in table.rows))
    if not column.numeric:
        return column
    cells = (
        cell.replace(" ± ", " ±").replace(" = ", "\u00a0= ").replace("(std ", "(std\u00a0") for cell in column.cells
    )
    if stacked:
        cells = (cell.replace(" ", "\n").replace("indistinguishable", "indistin-\nguishable") for cell in cells)
    return replace(column, cells=tuple(cells))


def _least_width(column: Column) -> int:
    """Characters a number needs, which must not be broken; text may wrap at its spaces, and within very long words."""
    headings = [len(word) for word in column.heading.split()]
    if column.numeric:
        return max([*headings, *(len(line) for cell in column.cells for line in cell.split("\n"))])
    longest = max([*headings, *(len(word) for cell in column.cells for word in cell.split())])
    return min(longest, _LONGEST_WORD)


def _grid(title: str) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    return RichTable(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )


def _add_column(grid: RichTable, heading: str, numeric: bool, least_width: int = 0) -> None:
    from rich.text import Text

    shown = heading.replace(" ", "\n") if numeric else heading
    grid.add_column(
        Text(shown), justify="right" if numeric else "left", overflow="fold", no_wrap=numeric, min_width=least_width
    )


def result_table(record: Mapping[str, Any]) -> RichTable:
    """The result of one run as a two-column table, from its record (of any schema version)."""
    from rich.text import Text

    grid = _grid("Result")
    grid.show_header = False
    _add_column(grid, "", numeric=False)
    _add_column(grid, "", numeric=False)
    for name, value in _result_lines(record):
        grid.add_row(Text(name, style="bold"), Text(value))
    return grid


def _result_lines(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    run = run_from_record(record, Path("."))
    row = row_of([run])
    metrics = [(name, metric_text(value)) for name, value in row.metrics.items()]
    return [
        ("method", run.method),
        ("global batch = micro × accumulation × ranks", batch_text(run)),
        ("train s/epoch", seconds_text(row.train_seconds)),
        ("eval s/epoch", seconds_text(row.eval_seconds)),
        *metrics,
        *_best_line(record, run.epochs),
        *_weights_line(record),
        *((f"test {name}", metric_text(Estimate(value, None, 1))) for name, value in run.test_metrics.items()),
        ("peak memory (largest rank)", bytes_text(row.peak_memory_bytes)),
        ("status", status_text(row)),
    ]


def _best_line(record: Mapping[str, Any], epochs: Sequence[Any]) -> list[tuple[str, str]]:
    """The best value of the judging metric and its epoch, where that is not the last one."""
    best = mapping(record.get("best"))
    value, epoch = number(best.get("value")), number(best.get("epoch"))
    if value is None or epoch is None or not epochs or epochs[-1].epoch == epoch:
        return []
    return [(f"best {text(best.get('metric'))}", f"{metric_text(Estimate(value, None, 1))} after epoch {epoch:g}")]


def _weights_line(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Which step's weights were tested and saved, where that was asked for."""
    weights = mapping(record.get("weights"))
    step, best = number(weights.get("step")), mapping(weights.get("best"))
    if step is None:
        return []
    return [("weights kept", f"of step {step:g}" + (f", best {text(best.get('metric'))}" if best else ""))]


def print_result(record: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the result of one run, and say so when its data were generated."""
    from rich.console import Console

    out = console or Console()
    out.print(result_table(record))
    if run_from_record(record, Path(".")).generated_data:
        out.print(GENERATED_NOTE, style="dim", markup=False, highlight=False)
