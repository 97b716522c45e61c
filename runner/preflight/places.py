"""Folders the run writes to."""

from __future__ import annotations

import os
from pathlib import Path

from runner import rundir
from runner.errors import Problem
from runner.record import FILE
from runner.schema import RunConfig


def check_places(config: RunConfig, run_dir: Path) -> list[Problem]:
    """Problems of the run folder: occupied, or not writable."""
    if (run_dir / FILE).exists():
        return [Problem("hydra.run.dir", run_dir, "another run's record lies there", f"choose another folder, or go on with it: python -m runner resume '{run_dir}'")]
    if run_dir.is_file():
        return [Problem("hydra.run.dir", run_dir, "this is a file", "choose another folder")]
    if run_dir.is_dir() and any(path.name not in _RENDERED for path in run_dir.iterdir()):
        return [Problem("hydra.run.dir", run_dir, "this folder holds other files", "choose an empty or a new folder")]
    parent = next(path for path in [run_dir, *run_dir.parents] if path.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        return [Problem("hydra.run.dir", run_dir, f"{parent} is not writable", "set hydra.run.dir=DIR")]
    return []


_RENDERED = {rundir.CONFIG_FILE, rundir.ACCELERATE_FILE, rundir.DEEPSPEED_FILE, rundir.COMMAND_FILE}
