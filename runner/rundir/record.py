"""The run record: `record.json`, valid at any moment, the only interface between running and comparing.

One writer at a time: the runner writes it before the ranks start, rank 0 while they run, the runner
again when they have ended. Every write replaces the file in one step.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.plain_text import storable
from runner.record_format import RECORD_FILE
from runner.regular_files import read_regular
from runner.secrets import redacted

FULL = (errno.ENOSPC, errno.EDQUOT)  # no space, or no more of it for this user
FILE = RECORD_FILE
METRICS_FILE = "metrics.jsonl"


def now() -> str:
    """The time, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def finite(value: object) -> object:
    """The value with NaN and infinities as None: JSON has no such numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step: a reader sees the old text or the new, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(redacted(storable(text)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


class Record:
    """`record.json` of one run folder.

    Attributes:
        may_wait: a write that fails for lack of space is left to the next one; set while ranks work.
    """

    may_wait = False

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE
        self.data: dict[str, Any] = {}

    @classmethod
    def read(cls, run_dir: Path) -> Record:
        """The record as it lies on disk.

        Raises:
            OSError, ValueError: where there is none, or it is no JSON.
        """
        record = cls(run_dir)
        record.data = json.loads(read_regular(record.path))
        return record

    def update(self, **values: object) -> None:
        """Set top-level keys and write."""
        self.data.update(values)
        self.write()

    def write(self) -> None:
        """Write atomically; numbers that JSON has no word for become null."""
        try:
            write_atomically(
                self.path, json.dumps(finite(self.data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            )
        except OSError as error:
            if not (self.may_wait and error.errno in FULL):
                raise

    def end_attempt(self, status: str, reason: str | None) -> None:
        """Close the newest attempt and the run with it."""
        attempts = self.data.setdefault("attempts", [])
        if attempts:
            attempts[-1].update(ended_at=now(), status=status, reason=reason)
        started = self.data.get("runner", {}).get("started_monotonic")
        wall = time.monotonic() - started if started is not None else None
        earlier = sum(attempt.get("wall_seconds") or 0.0 for attempt in attempts[:-1])
        if attempts and wall is not None:
            attempts[-1]["wall_seconds"] = wall
        total = earlier + wall if wall is not None else None
        self.data.update(status=status, reason=reason, ended_at=now(), wall_seconds=total)
        self._let_phases_add_up(total)
        self.write()

    def _let_phases_add_up(self, wall_seconds: float | None) -> None:
        phases = self.data.get("phases")
        if phases and wall_seconds is not None:
            named = sum(value for name, value in phases.items() if name != "other")
            phases["other"] = max(0.0, wall_seconds - named)
