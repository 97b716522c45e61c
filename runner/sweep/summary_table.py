"""What a sweep prints at its end: one line a job."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

FAILED, COMPLETED, SKIPPED, PREEMPTED, NOT_RUN = "failed", "completed", "skipped", "preempted", "not run"
_LONGEST = 160  # characters of a cause


@dataclass(frozen=True)
class Row:
    """How one job ended.

    Attributes:
        text: the metric, or the cause.
        value: the recipe's metric; None where there is none.
        cause: what failed, in full.
    """

    job: str
    label: str
    status: str
    text: str
    folder: Path | None
    value: float | None = None


def metric_of(record: dict[str, Any]) -> tuple[str, float | None]:
    """The metric that judges the recipe as text and number, e.g. (`f1 0.9312`, 0.9312)."""
    name = str(((record.get("config") or {}).get("recipe") or {}).get("metric_for_best"))
    value = (record.get("metrics") or {}).get(name)
    return (f"{name} {value:.4f}", float(value)) if value is not None else ("", None)


def print_table(rows: list[Row], console: Console) -> None:
    """Aligned columns without folding, so that a path can be copied and a line searched for."""
    heads = ("job", "status", "overrides", "metric or cause", "directory")
    lines = [heads, *((row.job, row.status, row.label, _shortened(row.text), _relative(row.folder)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    console.print()
    for line in lines:
        console.print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip(),
            highlight=False,
            markup=False,
        )


def _shortened(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"


def _relative(folder: Path | None) -> str:
    if folder is None:
        return ""
    inside = folder.is_relative_to(Path.cwd())
    return os.path.relpath(folder) if inside else str(folder)
