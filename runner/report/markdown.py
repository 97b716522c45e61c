"""Tables as GitHub-flavoured markdown."""

from __future__ import annotations

import re

from runner.report.columns import table_columns
from runner.report.fairness import statement
from runner.report.tables import DEFINITIONS, Comparison, Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def markdown(comparison: Comparison) -> str:
    """All tables, each under its heading and with its fairness statement below it."""
    parts = [_table(table) for table in comparison.tables]
    closing = "\n".join(f"- {escaped(line)}" for line in (*comparison.notes, *DEFINITIONS))
    return "\n\n".join([*parts, closing]) + "\n"


def escaped(value: str) -> str:
    """Text that markdown shows as it is: nothing in it is markup, a cell border or HTML."""
    return _SPECIAL.sub(r"\\\1", value.replace("&", "&amp;"))


def _table(table: Table) -> str:
    columns = table_columns(table)
    lines = [
        _line([escaped(column.heading) for column in columns]),
        _line(["---:" if column.numeric else "---" for column in columns]),
        *(_line([escaped(column.cells[index]) for column in columns]) for index in range(len(table.rows))),
    ]
    footer = [
        *([table.drift] if table.drift else []),
        *(statement(table.fairness) if table.fairness else []),
        *table.notes,
    ]
    notes = "".join(f"\n\n{escaped(line)}" for line in footer)
    return f"### {escaped(table.title)}\n\n" + "\n".join(lines) + notes


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
