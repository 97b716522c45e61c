"""How far a preparation is: told by the process that does it, passed on by those that wait for it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock

BEAT_SECONDS = 1.0
PREPARING = "preparing data"  # a rank's phase, followed by the split's name


@dataclass(frozen=True)
class Progress:
    """Where the preparation of a split stands.

    Attributes:
        done: rows that are written, of `total`, where that is known.
        rate: rows a second, since this process began.
        owner: process and machine that does the work.
    """

    split: str
    done: int = 0
    total: int | None = None
    rate: float = 0.0
    owner: str = ""


Report = Callable[[Progress], None]


def no_report(_: Progress) -> None:
    """For callers who do not want to hear of it."""


class Preparing:
    """Reports at least once a second while a split is prepared, also from within a long block.

    Args:
        place: file that tells those who wait.
        patience: seconds without a finished block after which the reports stop, so that a hang is noticed.
    """

    def __init__(self, split: str, total: int | None, place: Path, report: Report, patience: float) -> None:
        self._split, self._total, self._place, self._report, self._patience = split, total, place, report, patience
        self._began = self._advanced = time.monotonic()
        self._done = 0
        self._first: int | None = None
        self._over = threading.Event()

    def __enter__(self) -> Preparing:
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._place.unlink(missing_ok=True)

    def rows(self, done: int) -> None:
        """So many rows are done, those of an earlier start included."""
        self._first = done if self._first is None else self._first
        self._done, self._advanced = done, time.monotonic()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            if time.monotonic() - self._advanced < self._patience:
                progress = self._progress()
                with contextlib.suppress(OSError):
                    self._place.write_text(json.dumps(asdict(progress)))
                self._report(progress)

    def _progress(self) -> Progress:
        seconds = time.monotonic() - self._began
        rate = (self._done - (self._first or 0)) / seconds
        return Progress(
            self._split, self._done, self._total, round(rate, 1), f"{os.getpid()} on {socket.gethostname()}"
        )


@contextlib.contextmanager
def locked(lock: Path, split: str, place: Path, report: Report) -> Iterator[None]:
    """Hold the lock of a split; while another process holds it, pass its progress on."""
    held = filelock.FileLock(lock)
    while True:
        try:
            held.acquire(timeout=BEAT_SECONDS)
            break
        except filelock.Timeout:
            try:
                report(Progress(**json.loads(place.read_text())))
            except (OSError, ValueError, TypeError):
                report(Progress(split))
    try:
        yield
    finally:
        held.release()


@contextlib.contextmanager
def all_cores() -> Iterator[None]:
    """Tokenizers work in threads here; elsewhere in a rank they must not, since ranks fork."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
