"""Watches the ranks of a trial from outside, and ends it when one of them exceeds its memory or its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.launch.host_client import Host
from runner.machine import resident_peak_bytes
from runner.rundir.heartbeat import read_heartbeats


class GuardedHost:
    """A host whose job is ended when a rank's resident memory or the time exceeds what it may use.

    The kernel keeps the highest resident set of a process (VmHWM), so a peak between two looks is seen too.

    Attributes:
        peak_bytes: highest resident memory of any rank so far.
        ended_by: why the job was ended: `memory`, `time`, or None.
    """

    def __init__(self, host: Host, resident_limit: int | None, seconds: float) -> None:
        self._host, self._limit, self._seconds = host, resident_limit, seconds
        self.peak_bytes = 0
        self.ended_by: str | None = None

    def run(
        self, op: str, run_dir: Path, environment: dict[str, str], while_running: Callable[[], None]
    ) -> dict[str, Any]:
        """As `Host.run`."""
        began: float | None = None

        def look() -> None:
            nonlocal began
            while_running()
            if began is None and self._host.job is not None:  # before that the host is importing the libraries
                began = time.monotonic()
            self._look(run_dir, time.monotonic() - began if began is not None else 0.0)

        return self._host.run(op, run_dir, environment, look)

    def __getattr__(self, name: str) -> object:
        """Everything else is the host's own."""
        return getattr(self._host, name)

    def _look(self, run_dir: Path, seconds: float) -> None:
        if self._limit is not None:
            peaks = [resident_peak_bytes(int(beat.get("pid", 0))) for beat in read_heartbeats(run_dir).values()]
            self.peak_bytes = max([self.peak_bytes, *peaks])
            if self.peak_bytes > self._limit:
                self._end("memory")
        if seconds > self._seconds:
            self._end("time")

    def _end(self, why: str) -> None:
        self.ended_by = self.ended_by or why
        self._host.kill_job()
