"""`runner doctor`: one screen about this machine, problems first, each with its fix."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from runner import errors
from runner.diagnostics import examine, summary
from runner.machine import Finding

MARKS = {"problem": ("problem", "bold red"), "warning": ("warning", "yellow"), "ok": ("ok", "green")}


def main(arguments: Sequence[str]) -> int:
    """Entry of the verb. Returns 1 when something would stop the embedded default run, else 0, also with warnings."""
    options = _parser().parse_args(list(arguments))
    findings = examine()
    if options.json:
        print(json.dumps(summary(findings), indent=2))
    else:
        _show(findings)
    return errors.EXIT_FAILED if any(finding.level == "problem" for finding in findings) else errors.EXIT_COMPLETED


def _show(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for style in (None, "bold", None):
        table.add_column(style=style, overflow="fold")
    for finding in findings:
        label, style = MARKS[finding.level]
        text = Text(finding.text)
        if finding.fix:
            text.append(f"\n→ {finding.fix}", style="cyan")
        table.add_row(Text(label, style=style), finding.topic, text)
    console.print(table)
    problems = sum(finding.level == "problem" for finding in findings)
    console.print(
        "the embedded default run (python -m runner) "
        + ("would be stopped by the problems above" if problems else "can run here")
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner doctor", description="What this machine can do, problems first, each with its fix."
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser
