"""What failing ranks leave in the run folder: `errors/rank_N.json`, and markers of those that torch elastic ended."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from runner.rundir.record import write_atomically

ERRORS = "errors"


def ended_marker(run_dir: Path, rank: int) -> Path:
    """Where a rank that torch elastic ended says so: it is not the one that failed, although it kept no error."""
    return run_dir / ERRORS / f"ended_{rank}"


def keep_error(run_dir: Path, rank: int, content: dict[str, Any]) -> None:
    """Write a rank's error for the runner to read."""
    (run_dir / ERRORS).mkdir(exist_ok=True)
    write_atomically(_error_file(run_dir, rank), json.dumps(content))


def begin_attempt(run_dir: Path, rank: int, restarts: int) -> None:
    """The error that made torch elastic start this rank again is no longer the run's; keep it under another name."""
    ended_marker(run_dir, rank).unlink(missing_ok=True)
    if restarts:
        with contextlib.suppress(OSError):
            os.replace(_error_file(run_dir, rank), run_dir / ERRORS / f"restart_{restarts}_rank_{rank}.json")


def errors_of_attempt(run_dir: Path) -> list[dict[str, Any]]:
    """The errors that ranks of the present attempt kept."""
    return _errors(run_dir, "rank_*.json")


def errors_before_restart(run_dir: Path, restarts: int) -> list[dict[str, Any]]:
    """The errors for which torch elastic started the ranks again for the `restarts`-th time."""
    return _errors(run_dir, f"restart_{restarts}_rank_*.json")


def _error_file(run_dir: Path, rank: int) -> Path:
    return run_dir / ERRORS / f"rank_{rank}.json"


def _errors(run_dir: Path, pattern: str) -> list[dict[str, Any]]:
    found = []
    for path in (run_dir / ERRORS).glob(pattern):
        try:
            found.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue
    return found
