"""What earlier sweeps left: cells by their hash, and the folder of a sweep that is gone on with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.compose.multirun import make_folder
from runner.record_format import RECORD_FILE
from runner.regular_files import read_regular
from runner.report.records import find_run_folders, judge_status
from runner.report.sweep_lists import SWEEP_FILE
from runner.rundir import CONFIG_FILE
from runner.rundir.record import write_atomically

MULTIRUN = "multirun"


@dataclass(frozen=True)
class Earlier:
    """One earlier run of a cell."""

    folder: Path
    record: dict[str, Any]

    @property
    def completed(self) -> bool:
        """Whether there is nothing left to do."""
        return self.record.get("status") == "completed"


def search_roots(sweep_dir: Path) -> list[Path]:
    """Where earlier cells are looked for: ./multirun, and the sweep's own folder where it lies elsewhere."""
    common = Path.cwd() / MULTIRUN
    roots = [common] if common.is_dir() else []
    if sweep_dir.is_dir() and not sweep_dir.is_relative_to(common):
        roots.append(sweep_dir)
    return roots


def earlier_cells(roots: Iterable[Path]) -> dict[str, Earlier]:
    """Earlier runs by cell hash; of several a completed one, else the one that started last."""
    found: dict[str, Earlier] = {}
    for folder in find_run_folders(list(roots)):
        run = _read(folder)
        key = (run.record.get("cell") or {}).get("hash") if run else None
        if run is None or not key:
            continue
        if key not in found or _rank(run) > _rank(found[key]):
            found[key] = run
    return found


def _read(folder: Path) -> Earlier | None:
    try:
        raw = json.loads(read_regular(folder / RECORD_FILE))
    except (OSError, ValueError, RecursionError):
        return None
    return Earlier(folder, dict(judge_status(raw))) if isinstance(raw, dict) else None


def _rank(run: Earlier) -> tuple[bool, str]:
    return run.completed, str(run.record.get("started_at"))


def folder_of_sweep(roots: Iterable[Path], identity: str) -> Path | None:
    """The newest folder of a sweep with this identity."""
    known = [path for root in roots for path in root.rglob(SWEEP_FILE)]
    mine = [path for path in known if _identity(path) == identity]
    return max(mine, key=lambda path: path.stat().st_mtime).parent if mine else None


def _identity(path: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(read_regular(path))
        return str(content.get("sweep")) if isinstance(content, dict) else None
    return None


def write_sweep(sweep_dir: Path, identity: str, command: str, cells: list[dict[str, Any]]) -> None:
    """Keep what the sweep consists of next to its cells.

    Raises:
        RequestError: where its folder cannot be made.
    """
    make_folder(sweep_dir)
    write_atomically(
        sweep_dir / SWEEP_FILE, json.dumps({"sweep": identity, "command": command, "cells": cells}, indent=1) + "\n"
    )


def free_folder(wanted: Path) -> Path:
    """The folder itself, or `NAME-2`, `NAME-3`, … where a run lies in it already; a stored configuration alone does not
    count.
    """
    candidates = [wanted, *(wanted.with_name(f"{wanted.name}-{number}") for number in range(2, 1000))]
    return next(
        path for path in candidates if not path.exists() or all(item.name == CONFIG_FILE for item in path.iterdir())
    )
