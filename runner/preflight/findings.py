"""What was found in rows, as problems: bounded lists of names and rows, and overrides that can be pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from runner.compose.overrides import quoted
from runner.config.schema import RunConfig
from runner.data.reading import Findings
from runner.data.source import named_files
from runner.errors import Problem, Severity

_PLAIN = re.compile(r"(?!(true|false|null|none|yes|no|on|off|inf|nan)$)[A-Za-z_][\w./-]*", re.IGNORECASE | re.ASCII)


def on_split(config: RunConfig, split: str, why: str, fix: str = "", severity: Severity = "error") -> Problem:
    """A problem of the files of a split."""
    key = f"dataset.{split}"
    if split == "validation" and config.dataset.validation is None:
        key = "dataset.train"  # held out
    named = named_files(config.dataset, split)
    return Problem(key, named, why.replace(f"{named}: ", ""), fix, severity)  # the one file is named already


def override(key: str, value: str) -> str:
    """`KEY=VALUE` as it can be pasted behind the command, quoted where Hydra or a shell would read
    the value otherwise.
    """
    return f"{key}={value}" if _PLAIN.fullmatch(value) else shlex.quote(f"{key}={quoted(value)}")


def override_list(key: str, values: Sequence[str]) -> str:
    """`KEY=[VALUE,…]` as it can be pasted."""
    if all(_PLAIN.fullmatch(value) for value in values):
        return f"{key}=[{','.join(values)}]"
    return shlex.quote(f"{key}=[{','.join(map(quoted, values))}]")


def names(items: Sequence[str], most: int = 12, longest: int = 60) -> str:
    """Column names or labels in quotation marks; a long list is cut, and says by how much."""
    shown = ", ".join(repr(shortened(item, longest)) for item in items[:most])
    return shown + (f" and {len(items) - most:,} more" if len(items) > most else "")


def shortened(text: str, longest: int = 60) -> str:
    """The text, or its beginning."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def places(found: Findings, most: int = 5) -> str:
    """The first rows of a finding."""
    shown = "; ".join(shortened(str(item), 160) for item in found.first[:most])
    return shown + ("; …" if found.count > min(most, len(found.first)) else "")


def rows_in(found: Findings, of: int) -> str:
    """`3 of 100 rows (row 4, row 9, row 12)`; one row by its place alone."""
    if found.count == 1:
        return str(found.first[0])
    return f"{within(found.count, of)} ({', '.join(map(str, found.first))}{', …' * (found.count > len(found.first))})"


def within(count: int, of: int) -> str:
    """A number of rows and of how many."""
    return f"{count:,} of {of:,} rows"
