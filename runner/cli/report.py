"""`python -m runner report`: read records, print or write the comparison."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.plain_text import storable
from runner.report.columns import NAMES, UnknownColumn, arranged
from runner.report.records import DEFAULT_FOLDERS, NoSuchFolder, find, read_runs
from runner.report.sweep_lists import elsewhere, read_lists
from runner.report.tables import Comparison, Layout, compare
from runner.secrets import redacted

if TYPE_CHECKING:
    from rich.console import Console

FORMATS = ("table", "markdown", "latex", "csv", "json", "html")
_FORMAT_BY_SUFFIX = {
    ".txt": "table", ".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json", ".html": "html",
    ".htm": "html",
}  # fmt: skip
_DEFAULT_PAGE = Path("report.html")
_WRONG_REQUEST = 2


class WrongRequest(Exception):
    """Something about the request cannot be met; the message is one line for the user."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; returns the exit status: 0, or 2 with one line on stderr when nothing can be reported."""
    options = _parser().parse_args(arguments)
    try:
        name = _format(options)
        asked = tuple(part.strip() for part in options.columns.split(",") if part.strip()) if options.columns else None
        with _collector_off():
            comparison = arranged(_comparison(options.run_dirs), Layout(asked, options.sort, options.std))
            _deliver(comparison, name, options.output)
    except (WrongRequest, NoSuchFolder, UnknownColumn) as error:
        print(f"report: {error}", file=sys.stderr)
        return _WRONG_REQUEST
    return 0


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Without Python's cycle collector: what records become lives to the end, and looking through it takes as long as
    all the rest.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # else the first look after this finds all of it again
        if was_on:
            gc.enable()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner report",
        description="Compare runs: read their records and print a table, or write a page.",
    )
    parser.add_argument(
        "run_dirs",
        nargs="*",
        type=Path,
        metavar="RUN_DIRS",
        help="run folders, sweep folders or trees (default: outputs/ and multirun/)",
    )
    parser.add_argument("--format", choices=FORMATS, help="default: by the ending of --output, else table")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write here instead of standard output")
    parser.add_argument(
        "--columns",
        default="",
        metavar="NAME,…",
        help=f"only these columns, in this order: {', '.join(NAMES)}, or the name of a metric",
    )
    parser.add_argument(
        "--sort", default="", metavar="NAME", help="rows by this column; --sort=-NAME from large to small"
    )
    parser.add_argument(
        "--std", action="store_true", help="standard deviation of the repeats beside the 95 %% interval"
    )
    return parser


def _format(options: argparse.Namespace) -> str:
    """The format that was asked for, or that the ending of --output names.

    Raises:
        WrongRequest: for an ending that names none.
    """
    if options.format:
        return str(options.format)
    if options.output is None:
        return "table"
    ending = options.output.suffix.lower()
    if ending not in _FORMAT_BY_SUFFIX:
        raise WrongRequest(
            f"--output {options.output}: "
            f"{f'{ending} is no ending of a format' if ending else 'the name has no ending'}; "
            f"use one of {', '.join(_FORMAT_BY_SUFFIX)} or add --format={{{','.join(FORMATS)}}}"
        )
    return _FORMAT_BY_SUFFIX[ending]


def _comparison(asked: Sequence[Path]) -> Comparison:
    """The runs of the asked folders, or of the default ones, and the runs of their sweeps wherever those lie.

    Raises:
        WrongRequest: no record was found.
        NoSuchFolder: a folder that was asked for does not exist.
    """
    roots = list(asked) or [folder for folder in DEFAULT_FOLDERS if folder.is_dir()]
    found = find(roots)
    planned = read_lists(found.sweeps)
    folders = found.runs + elsewhere(planned, found.runs)
    if not folders:
        places = ", ".join(str(root) for root in (asked or DEFAULT_FOLDERS))
        raise WrongRequest(f"no run found under {places}; make one with: python -m runner run")
    return compare(read_runs(folders), roots, planned)


def _deliver(comparison: Comparison, name: str, output: Path | None) -> None:
    """Print, or write to `output`; a page asked for on a terminal goes to report.html."""
    if name == "html" and output is None and sys.stdout.isatty():
        output = _DEFAULT_PAGE
    if name == "table":
        _deliver_table(comparison, output)
        return
    content = _content(comparison, name, output)
    if output is None:
        print(content, end="")
        sys.stdout.flush()
    else:
        _write(output, content)


def _content(comparison: Comparison, name: str, output: Path | None) -> str:
    if name == "html":
        from runner.report.html import MissingExtra, page

        try:
            return page(comparison, output.parent if output else Path())
        except MissingExtra as error:
            raise WrongRequest(str(error)) from None
    if name == "latex":
        from runner.report.latex import latex

        return latex(comparison)
    if name == "markdown":
        from runner.report.markdown import markdown

        return markdown(comparison)
    from runner.report.exports import csv_text, json_text

    return csv_text(comparison) if name == "csv" else json_text(comparison)


def _deliver_table(comparison: Comparison, output: Path | None) -> None:
    """The terminal's table; in a file it is plain text, 120 columns wide."""
    import io

    from rich.console import Console

    from runner.report.terminal import print_comparison

    if output is None:
        print_comparison(comparison, _console())
        return
    buffer = io.StringIO()
    print_comparison(comparison, Console(file=buffer, width=120))
    _write(output, buffer.getvalue())


def _console() -> Console:
    """A terminal's own width; in a pipe 120 columns unless COLUMNS says otherwise."""
    import os

    from rich.console import Console

    return Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=120)


def _write(output: Path, content: str) -> None:
    try:
        output.write_text(redacted(storable(content)), encoding="utf-8")
    except OSError as error:
        raise WrongRequest(f"cannot write {output}: {error.strerror}") from None
    print(f"wrote {output}", file=sys.stderr)
