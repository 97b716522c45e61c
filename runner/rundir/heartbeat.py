"""Where each rank stands: `heartbeat/rank_N.json`, overwritten in place."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from runner.rundir.record import finite

HEARTBEATS = "heartbeat"
_WIDTH = 384


class Heartbeat:
    """A small file per rank, overwritten in place with where the rank stands (cheap: one pwrite)."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        folder = run_dir / HEARTBEATS
        folder.mkdir(exist_ok=True)
        self._file = os.open(folder / f"rank_{rank}.json", os.O_CREAT | os.O_WRONLY, 0o644)
        self._state: dict[str, Any] = {"pid": os.getpid(), "host": os.uname().nodename}

    def beat(self, **state: object) -> None:
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
