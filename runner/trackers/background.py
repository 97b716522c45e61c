"""The runner's side of tracking: one process a tracker, started beside a run and waited for a moment at its end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from runner.config.schema import RunConfig
from runner.trackers import chosen


@contextlib.contextmanager
def tracked(run_dir: Path, config: RunConfig, console: Console) -> Iterator[None]:
    """Inside, the run's files are sent to its trackers. Nothing a tracker does is raised or waited for in here.

    Behind it the run waits up to `tracker.wait_seconds` for the last lines; what takes longer goes on by itself.
    """
    feeds = [_Feed(name, run_dir, console) for name in chosen(config)]
    try:
        yield
    finally:
        until = time.monotonic() + config.tracker.wait_seconds
        for feed in feeds:
            feed.end_input()
        for feed in feeds:
            feed.conclude(until)


class _Feed:
    """One side process and the thread that shows its warning."""

    def __init__(self, name: str, run_dir: Path, console: Console) -> None:
        self._name, self._run_dir, self._console = name, run_dir, console
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "runner.trackers.side_process", str(run_dir.absolute()), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is for the run
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [_import_path(), _given_path()]))},
            )
            threading.Thread(target=self._show, daemon=True).start()
        except OSError as error:
            self._say(f"warning: tracker={name}: {error}; the run goes on without it")

    def _show(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._say(line.rstrip("\n"))

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False)

    def end_input(self) -> None:
        """Let it know that the run has ended."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def conclude(self, until: float) -> None:
        """Wait for its end; say so where it is left to go on alone."""
        if self._process is None:
            return
        try:
            self._process.wait(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._say(
                f"tracker    {self._name} is still sending; should that be cut short: "
                f"python -m runner track '{self._run_dir}'"
            )


def _import_path() -> str:
    """Where this very runner is imported from: the process is started in the user's folder."""
    return str(Path(__file__).resolve().parents[2])


def _given_path() -> str:
    return os.environ.get("PYTHONPATH", "")
