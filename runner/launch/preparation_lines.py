"""Progress of a long preparation in lines of text, for output that is no terminal: a log of a batch job, a file."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console

EVERY_SECONDS = 15.0


class PreparationLines:
    """Prints a line now and then, the first one only when the preparation has taken a while.

    Args:
        console: a terminal shows a bar instead, and no lines.
    """

    def __init__(self, console: Console, every: float = EVERY_SECONDS) -> None:
        self._console, self._every, self._last = console, every, time.monotonic()

    def show(self, phase: str, beat: dict[str, Any]) -> None:
        """The newest word of a rank that prepares data: rows `done`, `of` so many, rows a second (`rate`)."""
        if self._console.is_terminal or time.monotonic() - self._last < self._every:
            return
        self._last = time.monotonic()
        self._console.print(line(phase, beat), highlight=False, markup=False)


def line(phase: str, beat: dict[str, Any]) -> str:
    """`preparing data: train: 20,000 of 300,000 rows, 1,250 rows/s, 3 min 44 s left`."""
    done, total, rate = beat.get("done", 0), beat.get("of"), beat.get("rate") or 0.0
    parts = [f"{done:,} of {total:,} rows" if total else f"{done:,} rows"]
    if rate:
        parts.append(f"{rate:,.0f} rows/s")
        if total and total >= done:
            parts.append(f"{_duration((total - done) / rate)} left")
    return f"{phase}: {', '.join(parts)}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
