"""Tables for a terminal, with rich alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.report.columns import Column, batch_text, bytes_text, metric_text, seconds_text, status_text, table_columns
from runner.report.fairness import statement
from runner.report.folding import row_of
from runner.report.run import run_from_record
from runner.report.tables import DEFINITIONS, Comparison, Table
from runner.report.versions import upgrade

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

GENERATED_NOTE = "The data are the runner's generated sample: the scores say nothing about a benchmark."
_METRICS_IN_TERMINAL = 3
_MOST_ROWS_LAID_OUT = 100


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print every table with its fairness statement, then what the columns mean."""
    for table in comparison.tables:
        _print_table(table, console)
        for line in footer(table):
            console.print(line, style="yellow" if line.startswith("DIFFERS") else "dim", markup=False, highlight=False)
        console.print()
    for line in (*comparison.notes, *DEFINITIONS):
        console.print(line, style="dim", markup=False, highlight=False)


def _print_table(table: Table, console: Console) -> None:
    """A table of usual length laid out by rich; a long one as aligned lines, which take a tenth of the time."""
    if len(table.rows) <= _MOST_ROWS_LAID_OUT:
        console.print(comparison_table(table))
        return
    columns = table_columns(table)
    widths = [max(len(text) for text in (column.heading, *column.cells)) for column in columns]
    lines = zip(*((column.heading, *column.cells) for column in columns), strict=True)
    console.print(table.title, style="bold", markup=False, highlight=False)
    for line in lines:
        cells = (cell.rjust(width) if column.numeric else cell.ljust(width) for cell, width, column in zip(line, widths, columns, strict=True))
        console.out("  ".join(cells).rstrip(), highlight=False)


def footer(table: Table) -> list[str]:
    """The lines under a table: why rows have no result, its fairness statement, and its notes."""
    reasons = [f"{row.label}: {row.status}, {row.reason}" for row in table.rows if row.reason and len(table.rows) <= _MOST_ROWS_LAID_OUT]
    return [*reasons, *(statement(table.fairness) if table.fairness else []), *table.notes]


def comparison_table(table: Table) -> RichTable:
    """One comparison as a rich table; cells are plain text, whatever a label or reason holds.

    Reasons are long and a terminal is narrow: they stand in the footer.
    """
    from rich.text import Text

    shown = _fitting(table_columns(table), table.metric_names)
    grid = _grid(table.title)
    for column in shown:
        _add_column(grid, column.heading, column.numeric)
    for index, row in enumerate(table.rows):
        style = "" if row.completed_runs else "red" if row.status in ("failed", "unreadable") else "yellow"
        cells = [column.cells[index].replace(" ± ", "±") for column in shown[:-1]]
        grid.add_row(*(Text(cell) for cell in (*cells, row.status)), style=style)
    return grid


def _fitting(columns: list[Column], metrics: list[str]) -> list[Column]:
    """Without the metrics that a terminal has no room for; csv, json and the page have them all."""
    hidden = set(metrics[_METRICS_IN_TERMINAL:])
    return [column for column in columns if column.heading not in hidden]


def _grid(title: str) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    return RichTable(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


def _add_column(grid: RichTable, heading: str, numeric: bool) -> None:
    from rich.text import Text

    grid.add_column(Text(heading), justify="right" if numeric else "left", overflow="fold")


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
    run = run_from_record(upgrade(record), Path("."))
    row = row_of([run])
    metrics = [(name, metric_text(value)) for name, value in row.metrics.items()]
    return [
        ("method", run.method),
        ("global batch = micro × accumulation × ranks", batch_text(run)),
        ("train s/epoch", seconds_text(row.train_seconds)),
        ("eval s/epoch", seconds_text(row.eval_seconds)),
        *metrics,
        ("peak memory (largest rank)", bytes_text(row.peak_memory_bytes)),
        ("status", status_text(row)),
    ]


def print_result(record: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the result of one run, and say so when its data were generated."""
    from rich.console import Console

    out = console or Console()
    out.print(result_table(record))
    if run_from_record(upgrade(record), Path(".")).generated_data:
        out.print(GENERATED_NOTE, style="dim", markup=False, highlight=False)
