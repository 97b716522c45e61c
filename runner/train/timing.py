"""Where the time of a run goes. Each second belongs to exactly one phase.

Definitions (docs/timing.md): a phase's seconds are wall seconds of rank 0 between its two borders. On a
GPU the device is synchronised at each border, and nowhere else, so that work still queued is charged to
the phase that queued it. A phase inside another is charged to itself only.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.machine import resident_peak_bytes

PHASES = (
    "startup",
    "data_preparation",
    "model_load",
    "data_wait",
    "forward",
    "backward",
    "optimizer",
    "evaluation",
    "checkpoint",
    "save_model",
    "other",
)


@dataclass
class StepTime:
    """Seconds of one optimizer step; on a GPU known once the device has passed it."""

    seconds: float = math.nan

    def set(self, seconds: float) -> None:
        """Known now."""
        self.seconds = seconds


class PhaseClock:
    """Adds up seconds by phase.

    Args:
        synchronize: waits until the device has finished what was queued; does nothing on CPU.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self, synchronize: Callable[[], None] = lambda: None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._synchronize, self._now = synchronize, now
        self._open: list[str] = []
        self._since = 0.0
        self.on_entry: Callable[[str], None] = lambda _: None
        self.failed_in: str | None = None  # innermost phase that an exception left first

    def read(self) -> float:
        """The clock, in seconds, after the device has caught up."""
        self._synchronize()
        return self._now()

    def phase(self, name: str) -> Phase:
        """A context: the time inside is charged to `name`."""
        return Phase(self, name)

    def enter(self, name: str) -> None:
        """Begin a phase, inside the one that is open."""
        self._charge()
        self._open.append(name)
        try:
            self.on_entry(name)
        except BaseException:
            self.leave(name, failed=True)
            raise

    def leave(self, name: str, failed: bool) -> None:
        """End the innermost phase."""
        if failed:
            self.failed_in = self.failed_in or name
        self._charge()
        self._open.pop()

    def _charge(self) -> None:
        now = self.read()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def enter_in_step(self, name: str) -> None:
        """Begin a phase of an optimizer step; on a GPU (`device_clock`) the device is not waited for."""
        self.enter(name)

    def leave_in_step(self, failed: bool) -> None:
        """End the innermost phase of an optimizer step."""
        self.leave(self._open[-1], failed)

    def step_phase(self, name: str) -> StepPhase:
        """A context inside an optimizer step: the time inside is charged to `name`."""
        return StepPhase(self, name)

    def start_step(self) -> Callable[[], StepTime]:
        """Begin an optimizer step; what is returned ends it and says how long it took."""
        began = self._now()
        return lambda: StepTime(self._now() - began)

    def settle(self) -> None:
        """Take in times that a device has finished meanwhile, without waiting for it."""

    def phases(self, wall_seconds: float) -> dict[str, float]:
        """All phases; `other` is what remains of the wall time, so that they add up to it."""
        named = {name: self.seconds.get(name, 0.0) for name in PHASES if name != "other"}
        return {**named, "other": max(0.0, wall_seconds - sum(named.values()))}


class Phase:
    """A phase of a clock as a context; a class of its own, because a generator would take longer, five times a step."""

    __slots__ = ("_clock", "_name")

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._clock.enter(self._name)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._clock.leave(self._name, failed=kind is not None)


class StepPhase:
    """A phase inside an optimizer step as a context."""

    __slots__ = ("_clock", "_name")

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._clock.enter_in_step(self._name)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._clock.leave_in_step(failed=kind is not None)


class EpochTimes:
    """Step times and volume of one epoch.

    Args:
        warmup_steps: optimizer steps at the start of the run that stay out of the percentiles.
    """

    def __init__(self, warmup_steps: int) -> None:
        self._warmup_left = warmup_steps
        self.start_epoch()

    def start_epoch(self) -> None:
        """Forget the last epoch's steps; warm-up continues counting over epochs."""
        self._steps: list[StepTime] = []
        self.samples = 0
        self.tokens = 0

    def step(self, took: StepTime, samples: int, tokens: int) -> None:
        """Count one optimizer step: its time, and its rows and tokens over all ranks (padding left out)."""
        self.samples += samples
        self.tokens += tokens
        if self._warmup_left > 0:
            self._warmup_left -= 1
        else:
            self._steps.append(took)

    def state(self) -> dict[str, Any]:
        """The epoch so far, for a checkpoint."""
        return {"steps": self._seconds(), "samples": self.samples, "tokens": self.tokens}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up an epoch; warm-up counts anew, since the first steps of a new process are slow again."""
        self._steps = [StepTime(seconds) for seconds in state["steps"]]
        self.samples, self.tokens = state["samples"], state["tokens"]

    def _seconds(self) -> list[float]:
        """Of the steps so far, in order; the clock has been read since."""
        return [took.seconds for took in self._steps]

    def summary(self, train_seconds: float) -> dict[str, float | None]:
        """The epoch's rates (volume over all ranks ÷ wall seconds) and step-time percentiles in seconds."""
        steps = self._seconds()
        return {
            "train_seconds": train_seconds,
            "train_samples_per_second": self.samples / train_seconds if train_seconds else None,
            "train_tokens_per_second": self.tokens / train_seconds if train_seconds else None,
            "step_seconds_p50": float(np.percentile(steps, 50)) if steps else None,
            "step_seconds_p95": float(np.percentile(steps, 95)) if steps else None,
        }


def peak_memory_bytes(device_type: str) -> int:
    """Largest memory of this rank so far, in bytes: allocated by torch on a GPU, resident set on CPU."""
    if device_type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    return resident_peak_bytes(os.getpid())
