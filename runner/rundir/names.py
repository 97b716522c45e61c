"""The files of a run folder, by name, and the folders that ranks add to it."""

from __future__ import annotations

import contextlib
from pathlib import Path

CONFIG_FILE = "config.yaml"
ACCELERATE_FILE = "accelerate.yaml"
DEEPSPEED_FILE = "ds_config.json"
COMMAND_FILE = "command.sh"
PREDICTION_FILE = "memory_prediction.json"
LOCK_FILE = ".lock"
LOGS = "logs"


def log_of(run_dir: Path, rank: int) -> Path:
    """A rank's log."""
    return run_dir / LOGS / f"rank_{rank}.log"


def by_hand_folder(run_dir: Path) -> Path:
    """A new folder inside the run folder for ranks started by hand, so that no record is overwritten."""
    for number in range(1, 10_000):
        path = run_dir / f"by_hand_{number}"
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise RuntimeError(f"{run_dir} holds too many by_hand folders")
