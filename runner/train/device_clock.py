"""Times of optimizer steps on a GPU, without waiting for it.

Events are put into the device's queue and read when the device has passed them: at logged steps, which read the loss
anyway, and wherever the clock is read (ends of epochs, evaluations, checkpoints).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from typing_extensions import override

from runner.train.timing import PhaseClock, StepTime


class Event(Protocol):
    """As much of `torch.cuda.Event` as is used."""

    def record(self) -> None:
        """Put it into the queue of the current stream."""

    def query(self) -> bool:
        """Whether the device has passed it; does not wait."""

    def elapsed_time(self, end_event: Any, /) -> float:  # noqa: ANN401 - of the same class
        """Milliseconds from this event to a later one of the same kind, both passed."""


class DeviceClock(PhaseClock):
    """Phases inside a step are spans of the device's own time; all others are those of the host, as on a CPU.

    Args:
        synchronize: waits until the device has finished what was queued.
        new_event: makes an event that keeps times.
    """

    def __init__(
        self,
        synchronize: Callable[[], None],
        new_event: Callable[[], Event],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(synchronize, now)
        self._new_event = new_event
        self._pending: deque[tuple[Event, Event, Callable[[float], None]]] = deque()
        self._begun: list[tuple[str, Event]] = []

    @override
    def read(self) -> float:
        now = super().read()
        self.settle()
        return now

    @override
    def enter_in_step(self, name: str) -> None:
        self._begun.append((name, self._mark()))
        try:
            self.on_entry(name)
        except BaseException:
            self.leave_in_step(failed=True)
            raise

    @override
    def leave_in_step(self, failed: bool) -> None:
        name, begin = self._begun.pop()
        if failed:
            self.failed_in = self.failed_in or name
            return  # a device that has failed takes no further event
        self._pending.append((begin, self._mark(), partial(self._add, name)))

    @override
    def start_step(self) -> Callable[[], StepTime]:
        begin = self._mark()

        def end() -> StepTime:
            took = StepTime()
            self._pending.append((begin, self._mark(), took.set))
            return took

        return end

    @override
    def settle(self) -> None:
        while self._pending and self._pending[0][1].query():
            begin, end, take = self._pending.popleft()
            take(begin.elapsed_time(end) / 1000)

    def _mark(self) -> Event:
        event = self._new_event()
        event.record()
        return event

    def _add(self, name: str, seconds: float) -> None:
        self.seconds[name] += seconds


def clock_of(device_type: str) -> PhaseClock:
    """The clock of a rank on this kind of device."""
    if device_type != "cuda":
        return PhaseClock()
    import torch

    def new_event() -> Event:
        event: Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return event

    return DeviceClock(torch.cuda.synchronize, new_event)
