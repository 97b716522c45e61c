"""A process that must not outlive its parent."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # linux/prctl.h
STOPPING = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGHUP,
)  # ask a run to end; SIGHUP: the terminal was closed


def leave_stopping_to_the_runner() -> None:
    """Ignore the signals that ask a run to end, also where every process of it gets them."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


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
