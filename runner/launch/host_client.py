"""The runner's side of the host: start it, give it jobs, end jobs."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner import paths, render
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.launch import preload
from runner.launch.job import scrubbed, start_method
from runner.launch.process_signals import children_wait_for_handlers
from runner.trackers import credential_variables

POLL_SECONDS = 0.1
END_SECONDS = 10.0


class HostDied(RuntimeError):
    """The host ended by itself; the text is the end of its standard error."""


class Host:
    """A host process and its pipes.

    Args:
        config: a resolved configuration: its device, launcher and cache decide what is imported, and how.
        offline: forbid the libraries to look names up on the hub.
    """

    def __init__(self, config: RunConfig, offline: bool) -> None:
        reading, writing = os.pipe()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the host
        secret = credential_variables()  # for the trackers' own processes, not for ranks
        kept = {name: value for name, value in os.environ.items() if name not in secret}
        environment = {**scrubbed(kept), **render.rank_environment(config)}
        paths.make_temporary_dir(config.cache_dir)
        if offline:
            environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        self.key = host_key(config, offline)
        with children_wait_for_handlers():
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "runner.launch.host",
                    str(os.getpid()),
                    str(writing),
                    *_preloaded(config),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[writing],
                env=environment,
                text=True,
            )
        os.close(writing)
        self._answers = os.fdopen(reading)
        self._selector = selectors.DefaultSelector()
        os.set_blocking(reading, False)
        self._selector.register(reading, selectors.EVENT_READ)
        self._buffer = ""
        self.job: int | None = None

    def run(
        self, op: str, run_dir: Path, environment: dict[str, str], while_running: Callable[[], None]
    ) -> dict[str, Any]:
        """Give the host a job and wait for its outcome, calling `while_running` ten times a second.

        Raises:
            HostDied: when the host ends before the job does.
        """
        self._send(_request(op, run_dir, environment))
        try:
            while True:
                for answer in self._read():
                    if answer["event"] == "started":
                        self.job = answer["pid"]
                    elif answer["event"] == "ended":
                        return answer
                while_running()
        except HostDied:
            raise
        except BaseException:
            self._end_job()  # the host may be used again: nothing of this job may be left, its answer neither
            raise
        finally:
            self.job = None

    def _end_job(self) -> None:
        """Kill the job that was asked for, and take its answer; without one in time, end the host."""
        until = time.monotonic() + END_SECONDS
        self.kill_job()
        with contextlib.suppress(HostDied):
            while time.monotonic() < until:
                for answer in self._read():
                    if answer["event"] == "started":
                        self.job = answer["pid"]
                        self.kill_job()
                    elif answer["event"] == "ended":
                        return
        self._process.kill()

    def start_in_background(self, op: str, run_dir: Path, environment: dict[str, str]) -> None:
        """Give the host a job whose outcome is read from the run folder, if at all."""
        self._send({**_request(op, run_dir, environment), "background": True})

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise HostDied(self._last_words()) from None

    def _read(self) -> list[dict[str, Any]]:
        if not self._selector.select(timeout=POLL_SECONDS):
            return []
        text = self._answers.read()
        if text == "":
            raise HostDied(self._last_words())
        *lines, self._buffer = (self._buffer + (text or "")).split("\n")
        return [json.loads(line) for line in lines]

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        return " | ".join(lines[-3:]) or f"exit status {self._process.poll()}"

    @property
    def alive(self) -> bool:
        """Whether it can take another job."""
        return self._process.poll() is None

    def kill_job(self) -> None:
        """End the job and its ranks at once."""
        if self.job is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.job, signal.SIGKILL)

    def close(self) -> None:
        """End the host and everything under it."""
        self.kill_job()
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.5)
        self._process.kill()
        self._process.wait()
        self._selector.close()
        self._answers.close()
        self._errors.close()


def _request(op: str, run_dir: Path, environment: dict[str, str]) -> dict[str, Any]:
    return {"op": op, "run_dir": str(run_dir), "cwd": os.getcwd(), "environment": environment}


def _preloaded(config: RunConfig) -> list[str]:
    """Modules to import ahead; none where ranks are fresh interpreters that import for themselves."""
    if start_method(config) != "fork":
        return []
    return [*preload.LIBRARIES, *engine_of(config).preloaded]


def host_key(config: RunConfig, offline: bool) -> tuple[Any, ...]:
    """Jobs with the same key can share a host: same device, launcher, threads, caches."""
    return (
        config.launcher.name,
        config.launcher.device,
        start_method(config),
        config.launcher.omp_num_threads,
        config.cache_dir,
        offline,
    )
