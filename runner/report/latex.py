"""Tables for a paper: LaTeX with booktabs, one `table` for each comparison."""

from __future__ import annotations

from runner.report.columns import table_columns
from runner.report.fairness import statement
from runner.report.tables import DEFINITIONS, Comparison, Table

_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "–": "--", "…": r"\ldots{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "→": r"$\rightarrow$", "·": r"$\cdot$",
    "√": r"$\surd$",
}  # fmt: skip


def latex(comparison: Comparison) -> str:
    """All tables, each with its fairness statement below it; needs `\\usepackage{booktabs}`."""
    head = ["% needs \\usepackage{booktabs}", *(f"% {escaped(line)}" for line in DEFINITIONS)]
    notes = [f"% {escaped(line)}" for line in comparison.notes]
    return "\n".join([*head, *notes, *(_table(table) for table in comparison.tables)]) + "\n"


def escaped(value: str) -> str:
    """Text that LaTeX prints as it is, in one line."""
    return "".join(_ESCAPES.get(letter, letter) for letter in " ".join(value.split()))


def _table(table: Table) -> str:
    columns = table_columns(table)
    body = [
        _line([escaped(column.cells[index]).replace("GiB", "\\,GiB").replace(" \\,", "\\,") for column in columns])
        for index in range(len(table.rows))
    ]
    below = [
        *([table.drift] if table.drift else []),
        *(statement(table.fairness) if table.fairness else []),
        *table.notes,
    ]
    return "\n".join(
        [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{escaped(table.title)}}}",
            f"\\begin{{tabular}}{{{''.join('r' if column.numeric else 'l' for column in columns)}}}",
            "\\toprule",
            _line([escaped(column.heading) for column in columns]),
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
            *(f"\\par\\footnotesize {escaped(line)}" for line in below),
            "\\end{table}",
        ]
    )


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
