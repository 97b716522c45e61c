"""What rank 0 tells the outside while it works: lines for the terminal, and metrics.jsonl."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from runner.rundir.record import FULL, METRICS_FILE, finite, write_atomically

SAID = "» "  # lines of rank 0's log that begin so are shown on the terminal


def say(text: str) -> None:
    """Print a line for the user; the runner shows it on the terminal, it stays in rank 0's log."""
    print(SAID + text, flush=True)


class MetricsLog:
    """`metrics.jsonl`: one object a logged optimizer step. Lines that a full disk refuses wait for space.

    Args:
        after_step: lines of later steps are dropped first, so that a resumed run has each step once.
    """

    def __init__(self, run_dir: Path, after_step: int = 0) -> None:
        self._path = run_dir / METRICS_FILE
        self._waiting: list[str] = []
        if self._path.exists():
            kept = [
                line
                for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
                if _step_of(line) <= after_step
            ]
            write_atomically(self._path, "".join(kept))

    def write(self, **values: object) -> None:
        """Append one line; non-finite numbers become null."""
        self._waiting.append(json.dumps(finite(values)) + "\n")
        with open(self._path, "ab", buffering=0) as file:
            end = file.tell()
            text = "".join(self._waiting).encode()
            try:
                if file.write(text) != len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._waiting = []
            except OSError as error:
                file.truncate(end)
                if error.errno not in FULL:
                    raise


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
