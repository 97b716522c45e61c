"""Signals that ask a run to end, and a process that must not outlive its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from types import FrameType

from runner.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED

PR_SET_PDEATHSIG = 1  # linux/prctl.h
STOPPING = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGHUP,
)  # ask a run to end; SIGHUP: the terminal was closed
FROM_SCHEDULERS = (signal.SIGTERM, signal.SIGUSR1)  # may come at any moment, while libraries are imported, too


class Stopping:
    """Requests to end, from signals: the first asks for a checkpoint and an orderly end, a second
    Ctrl-C ends at once.
    """

    def __init__(self) -> None:
        self.signals: list[int] = []

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Remember a signal; the watch acts on it."""
        self.signals.append(number)

    @property
    def asked(self) -> bool:
        """Whether an orderly end was asked for."""
        return bool(self.signals)

    @property
    def at_once(self) -> bool:
        """Whether Ctrl-C came twice."""
        return self.signals.count(signal.SIGINT) >= 2

    @property
    def exit_status(self) -> int:
        """Of a command that ends because it was asked to, with work left."""
        return EXIT_INTERRUPTED if signal.SIGINT in self.signals else EXIT_PREEMPTED


_early: Stopping | None = None


def listen_early() -> None:
    """Note a scheduler's signals from now on, before anything heavy is imported; `stopping` takes them up.

    Without it they would end the process with 138 or 143, which no scheduler takes for a run to go on with. A second
    one before the run begins ends the command.
    """
    global _early
    state = _early = Stopping()

    def note(number: int, frame: FrameType | None) -> None:
        state.note(number, frame)
        if len(state.signals) > 1:
            raise SystemExit(EXIT_PREEMPTED)

    for number in FROM_SCHEDULERS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, note)


@contextlib.contextmanager
def stopping() -> Iterator[Stopping]:
    """Catch signals for the time of a run, and ignore them from its end on: the process is about to exit, and a signal
    that
    comes while it prints its result must not change the exit status of a run whose record is closed."""
    state = _early or Stopping()
    for number in STOPPING:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # ignored: nohup
            signal.signal(number, state.note)
    try:
        yield state
    finally:
        leave_stopping_to_the_runner()


@contextlib.contextmanager
def children_wait_for_handlers() -> Iterator[None]:
    """Processes started meanwhile hold these signals back until they call `leave_stopping_to_the_runner`.

    Slurm sends a warning to every process of a job step, also to one that has not come as far as its handlers.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_stopping_to_the_runner() -> None:
    """Ignore the signals that ask a run to end, also where every process of it gets them."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, in whatever way.

    Args:
        parent: process id of the parent as it was before the fork; if it is gone already, end now.
    """
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # not Linux: the runner's own clean-up has to do
    if os.getppid() != parent:
        os._exit(1)
