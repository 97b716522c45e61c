"""What the runner asks of its ranks while they work, and what rank 0 asks of the others: named flags.

On one machine a flag is an empty file in the run folder. Between machines it is a key in the control store, which every
rank asks directly: a file may be seen late there (NFS), or never (no shared folder).
"""

from __future__ import annotations

import contextlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Protocol

STOP_FILE = "stop"
STOP_AT = "stop_at"
STOP_EVALUATION = "stop_evaluation_at"
CHECKPOINT_AT = "checkpoint_at"
CONTROL_STORE = "RUNNER_CONTROL_STORE"  # HOST:PORT in the environment of ranks on several machines


class Preempted(Exception):
    """The run was asked to end; `step` optimizer steps are done."""

    def __init__(self, step: int) -> None:
        super().__init__(f"asked to stop after optimizer step {step}")
        self.step = step


class Flags(Protocol):
    """Named flags that all ranks of a run see in the same order."""

    def put(self, name: str) -> None:
        """Raise a flag."""

    def has(self, name: str) -> bool:
        """Whether it is raised."""

    def number_of(self, what: str) -> int | None:
        """N of the flag `what_N`, where one is raised."""


class FileFlags:
    """Empty files in the run folder; one can be made on a full disk, too."""

    def __init__(self, run_dir: str) -> None:
        self._folder = run_dir

    def put(self, name: str) -> None:
        """Make the file."""
        with contextlib.suppress(OSError), open(f"{self._folder}/{name}", "ab"):
            pass

    def has(self, name: str) -> bool:
        """Whether the file is there; asked at every step, and a path object would take longer than the call."""
        return os.path.exists(f"{self._folder}/{name}")

    def number_of(self, what: str) -> int | None:
        """The number in the file's name."""
        named = [int(path.name.rpartition("_")[2]) for path in Path(self._folder).glob(f"{what}_*")]
        return min(named, default=None)


class StoreFlags:
    """Keys of the control store on the head (torch's TCPStore; about 0.2 ms a question)."""

    def __init__(self, address: str) -> None:
        from datetime import timedelta

        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        host, _, port = address.rpartition(":")
        self._store = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))

    def put(self, name: str) -> None:
        """Set the key, and under the name alone its number."""
        what, _, number = name.rpartition("_")
        if number.isdigit():
            self._store.set(f"flag/{what}", number)
        self._store.set(f"flag/{name}", "1")

    def has(self, name: str) -> bool:
        """Whether the key is set."""
        return bool(self._store.check([f"flag/{name}"]))

    def number_of(self, what: str) -> int | None:
        """The number that was set last."""
        return int(self._store.get(f"flag/{what}")) if self.has(what) else None


@lru_cache(maxsize=8)
def _store_flags(address: str) -> StoreFlags:
    return StoreFlags(address)


def _flags(run_dir: Path) -> Flags:
    address = os.environ.get(CONTROL_STORE)
    return _store_flags(address) if address else FileFlags(str(run_dir))


def request_stop(run_dir: Path) -> None:
    """Ask the ranks to end at the next optimizer step, or batch of an evaluation."""
    (run_dir / STOP_FILE).touch()


def stop_is_wanted(run_dir: Path) -> bool:
    """Whether the run was asked to end, as rank 0 sees it; the ranks have to agree on a step."""
    return _flags(run_dir).has(STOP_FILE)


def stop_requested(run_dir: Path, step: int, is_main: bool) -> bool:
    """Whether to end before optimizer step `step` + 1, the same answer on every rank without a message."""
    flags = _flags(run_dir)
    if flags.has(f"{STOP_AT}_{step}"):
        return True
    if is_main and flags.has(STOP_FILE):
        flags.put(f"{STOP_AT}_{step + 1}")
    return False


def evaluation_stopped(run_dir: Path, batch: int, is_main: bool) -> bool:
    """Whether to end an evaluation before its micro batch number `batch`.

    Where batches need all ranks, no rank is past the batch that rank 0 names; where they do not, each rank ends as
    soon as it sees the name, and some may have finished: the ranks have to tell each other afterwards.
    """
    flags = _flags(run_dir)
    if not flags.has(STOP_FILE):
        return False
    named = flags.number_of(STOP_EVALUATION)
    if is_main and named is None:
        flags.put(f"{STOP_EVALUATION}_{batch + 1}")
    return named is not None and batch >= named


def agree_on_step(run_dir: Path, what: str, step: int) -> None:
    """On rank 0, before it joins optimizer step `step`: have every rank do something right after that step.

    Another rank can only finish the step after rank 0 has joined it, so it finds the flag in time.
    """
    _flags(run_dir).put(f"{what}_{step}")


def agreed_on_step(run_dir: Path, what: str, step: int) -> bool:
    """Whether rank 0 asked for something right after optimizer step `step`."""
    return _flags(run_dir).has(f"{what}_{step}")


def clear_requests(run_dir: Path) -> None:
    """Forget what an earlier attempt was asked for."""
    for pattern in (STOP_FILE, f"{STOP_AT}_*", f"{STOP_EVALUATION}_*", f"{CHECKPOINT_AT}_*"):
        for path in run_dir.glob(pattern):
            path.unlink(missing_ok=True)
