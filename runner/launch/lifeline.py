"""A process that must not outlive its parent."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # linux/prctl.h


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
