"""What the runner asks of its ranks while they work, and what rank 0 asks of the others: empty
files in the run folder.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

STOP_FILE = "stop"
STOP_AT = "stop_at"
STOP_EVALUATION = "stop_evaluation_at"
CHECKPOINT_AT = "checkpoint_at"


class Preempted(Exception):
    """The run was asked to end; `step` optimizer steps are done."""

    def __init__(self, step: int) -> None:
        super().__init__(f"asked to stop after optimizer step {step}")
        self.step = step


def request_stop(run_dir: Path) -> None:
    """Ask the ranks to end at the next optimizer step, or batch of an evaluation."""
    (run_dir / STOP_FILE).touch()


def stop_requested(run_dir: Path, step: int, is_main: bool) -> bool:
    """Whether to end before optimizer step `step` + 1, the same answer on every rank without a message."""
    if agreed_on_step(run_dir, STOP_AT, step):
        return True
    if is_main and os.path.exists(f"{run_dir}/{STOP_FILE}"):
        agree_on_step(run_dir, STOP_AT, step + 1)
    return False


def evaluation_stopped(run_dir: Path, batch: int, is_main: bool) -> bool:
    """Whether to end an evaluation before its micro batch number `batch`.

    Where batches need all ranks, no rank is past the batch that rank 0 names; where they do not, each rank ends as
    soon as it sees the name, and some may have finished: the ranks have to tell each other afterwards.
    """
    if not (run_dir / STOP_FILE).exists():
        return False
    named = [int(path.name.rpartition("_")[2]) for path in run_dir.glob(f"{STOP_EVALUATION}_*")]
    if is_main and not named:
        agree_on_step(run_dir, STOP_EVALUATION, batch + 1)
    return any(batch >= number for number in named)


def agree_on_step(run_dir: Path, what: str, step: int) -> None:
    """On rank 0, before it joins optimizer step `step`: have every rank do something right after that step.

    Another rank can only finish the step after rank 0 has joined it, so it finds the file in time. The step is
    in the file's name: an empty file can be made on a full disk, too.
    """
    with contextlib.suppress(OSError):
        (run_dir / f"{what}_{step}").touch()


def agreed_on_step(run_dir: Path, what: str, step: int) -> bool:
    """Whether rank 0 asked for something right after optimizer step `step`."""
    return os.path.exists(f"{run_dir}/{what}_{step}")  # at every step: a path object would take longer than the call


def clear_requests(run_dir: Path) -> None:
    """Forget what an earlier attempt was asked for."""
    for pattern in (STOP_FILE, f"{STOP_AT}_*", f"{STOP_EVALUATION}_*", f"{CHECKPOINT_AT}_*"):
        for path in run_dir.glob(pattern):
            path.unlink(missing_ok=True)
