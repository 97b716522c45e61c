"""What a rank tells the outside while it works: a heartbeat per rank, metrics.jsonl and the record from rank 0."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

from runner.rundir.record import FULL, METRICS_FILE, finite, write_atomically

HEARTBEATS = "heartbeat"
SAID = "» "  # lines of rank 0's log that begin so are shown on the terminal
_WIDTH = 256


def say(text: str) -> None:
    """Print a line for the user; the runner shows it on the terminal, it stays in rank 0's log."""
    print(SAID + text, flush=True)


class Heartbeat:
    """A small file per rank, overwritten in place with where the rank stands (cheap: one pwrite)."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        folder = run_dir / HEARTBEATS
        folder.mkdir(exist_ok=True)
        self._file = os.open(folder / f"rank_{rank}.json", os.O_CREAT | os.O_WRONLY, 0o644)
        self._state: dict[str, Any] = {"pid": os.getpid()}

    def beat(self, **state: Any) -> None:
        """Say where the rank stands: phase, step, total, epoch, loss."""
        self._state.update(state, monotonic=time.monotonic())
        text = json.dumps(finite(self._state))[: _WIDTH - 1]
        try:
            os.pwrite(self._file, text.ljust(_WIDTH - 1).encode() + b"\n", 0)
        except OSError:
            pass  # a full disk must not end the training; the checkpoint says so


def read_heartbeats(run_dir: Path) -> dict[int, dict[str, Any]]:
    """The newest word of each rank; torn or missing files are left out."""
    found: dict[int, dict[str, Any]] = {}
    for path in (run_dir / HEARTBEATS).glob("rank_*.json"):
        try:
            found[int(path.stem.removeprefix("rank_"))] = json.loads(path.read_text(errors="replace"))
        except (OSError, ValueError):
            continue
    return found


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

    def write(self, **values: Any) -> None:
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
