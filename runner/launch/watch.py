"""What the runner does while ranks work: show progress, pass on requests to stop, notice a stall."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from runner import machine, rundir
from runner.config.schema import RunConfig
from runner.data.preparing import PREPARING
from runner.launch.preparation_lines import PreparationLines
from runner.launch.process_signals import Stopping
from runner.machine import host_memory_bytes
from runner.memory.amounts import gib
from runner.rundir.heartbeat import read_heartbeats
from runner.safe_stdout import SafeStdout
from runner.train.progress import SAID

STACKS_SECONDS = 1.0  # time for the ranks to write their stacks


class Interrupted(Exception):
    """A second Ctrl-C: end at once."""


class StoppedEarly(Exception):
    """Asked to end before there was an optimizer step to end at."""


class StallDetected(Exception):
    """No rank has made progress for too long."""


class Watch:
    """Called ten times a second while a job runs.

    Args:
        stop: the signals that came.
        kill: ends the job at once.
    """

    def __init__(
        self, run_dir: Path, config: RunConfig, stop: Stopping, console: Console, kill: Callable[[], None]
    ) -> None:
        self._run_dir, self._config, self._stop, self._console, self._kill = run_dir, config, stop, console, kill
        self._began = self._progressed = time.monotonic()
        self._last: dict[int, Any] = {}
        self._reported = False
        self._prediction_read = False
        self._preparation = PreparationLines(console)
        self._read = _size(run_dir / rundir.LOGS / "rank_0.log")  # what an earlier attempt said is not said again
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=None, loss="")

    def __enter__(self) -> Watch:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._show_said()
        self._progress.stop()

    def __call__(self) -> None:
        """Show what is new.

        Raises:
            Interrupted: on a second Ctrl-C.
            StoppedEarly: asked to end while data are prepared; what is prepared stays in the cache.
            StallDetected: when the ranks stood still for too long; their stacks are in their logs by then.
        """
        self._pass_on_stop()
        beats = read_heartbeats(self._run_dir)
        self._stop_preparing(beats)
        self._show(beats.get(0, {}))
        self._show_said()
        self._warn_of_memory()
        self._check_progress(beats)

    def _warn_of_memory(self) -> None:
        """Once the prediction is there: say so where it does not fit."""
        if self._prediction_read:
            return
        prediction = rundir.memory_prediction(self._run_dir)
        if prediction is not None:
            self._prediction_read = True
            warning = memory_warning(prediction, self._config)
            if warning:
                self._console.print(warning, highlight=False, markup=False)

    def _pass_on_stop(self) -> None:
        # Without training there is no step to stop at, and nothing to keep.
        if self._stop.at_once or (self._stop.asked and self._config.mode == "evaluate"):
            self._kill()
            raise Interrupted
        if self._stop.asked and not self._reported:
            self._reported = True
            rundir.request_stop(self._run_dir)
            self._console.print(
                "asked to stop: the run ends at the next optimizer step or evaluation batch (Ctrl-C again ends it at "
                "once)"
            )

    def _stop_preparing(self, beats: dict[int, dict[str, Any]]) -> None:
        """No rank looks for requests while it tokenises, and a job that is to end has seconds, not minutes.

        Over several machines the ranks end at their first step: this runner could end its own ones only.
        """
        preparing = beats and all(str(beat.get("phase", "")).startswith(PREPARING) for beat in beats.values())
        if preparing and self._stop.asked and self._config.launcher.num_nodes == 1:
            self._kill()
            raise StoppedEarly

    def _show(self, beat: dict[str, Any]) -> None:
        if not beat:
            return
        phase = beat.get("phase", "")
        if phase.startswith(PREPARING):
            self._preparation.show(phase, beat)
            self._progress.update(self._task, description=phase, completed=beat.get("done", 0), total=beat.get("of"))
        elif phase.startswith("evaluating"):
            self._progress.update(self._task, description=phase, completed=beat.get("done", 0), total=beat.get("of"))
        elif phase == "training":
            loss = beat.get("loss")
            self._progress.update(
                self._task,
                description=f"epoch {beat.get('epoch', 0) + 1}",
                completed=beat.get("step", 0),
                total=beat.get("total"),
                loss=f"loss {loss:.4f}" if loss is not None else "",
            )
        else:
            self._progress.update(self._task, description=phase, completed=0, total=None)

    def _show_said(self) -> None:
        """Rank 0's lines for the terminal."""
        with contextlib.suppress(OSError):
            with open(self._run_dir / rundir.LOGS / "rank_0.log", encoding="utf-8", errors="replace") as log:
                log.seek(self._read)
                text = log.read()
            whole, newline, _ = text.rpartition("\n")
            self._read += len((whole + newline).encode())
            for line in whole.splitlines():
                if line.startswith(SAID):
                    self._console.print(line.removeprefix(SAID), highlight=False, markup=False)

    def _check_progress(self, beats: dict[int, dict[str, Any]]) -> None:
        now = time.monotonic()
        seen = {rank: beat.get("monotonic") for rank, beat in beats.items()}
        if seen != self._last:
            self._last, self._progressed = seen, now
        launcher = self._config.launcher
        training = any(
            beat.get("step", 0) > 0 or str(beat.get("phase", "")).startswith("eval") for beat in beats.values()
        )
        limit = launcher.hang_timeout_seconds if training else launcher.start_timeout_seconds
        if now - self._progressed > limit:
            self._write_stacks(beats)
            self._kill()
            where = (
                ", ".join(
                    f"rank {rank} in {beat.get('phase')} at step {beat.get('step', 0)}"
                    for rank, beat in sorted(beats.items())
                )
                or "no rank said a word"
            )
            raise StallDetected(f"no progress for {limit:g} s ({where}); each rank's stack is in its log")

    def _write_stacks(self, beats: dict[int, dict[str, Any]]) -> None:
        for beat in beats.values():
            if beat.get("host") != os.uname().nodename:
                continue
            with contextlib.suppress(OSError, KeyError):
                os.kill(beat["pid"], signal.SIGUSR2)
        time.sleep(STACKS_SECONDS)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def console() -> Console:
    """The terminal; plain text where it is none."""
    return Console(file=cast(IO[str], SafeStdout()), soft_wrap=True)


def memory_warning(prediction: dict[str, Any], config: RunConfig) -> str | None:
    """A line where the predicted bytes exceed what the device, or on CPU the host, has."""
    if "error" in prediction:
        return None
    devices = machine.visible_devices(config.launcher.gpu_ids)
    if config.launcher.device == "cuda" and devices:
        needed, has, place = (
            max(prediction["per_rank_device_bytes"]),
            min(device.memory_bytes for device in devices),
            "the device",
        )
    else:
        needed, has, place = prediction["per_host_bytes"], host_memory_bytes(), "this host"
    if needed <= has:
        return None
    return (
        f"warning: memory: the run is predicted to need {gib(needed, 1)}, {place} has {has / 2**30:.1f} "
        "GiB; `python -m runner estimate` with the same overrides shows what fits"
    )
