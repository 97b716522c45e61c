"""Ranks that earlier runners left behind: they hold memory and ports, and the next run would fail of it for no visible
reason.
"""

from __future__ import annotations

import contextlib
import os

from runner.errors import Problem

HOST_MODULE = "runner.launch.host"  # ranks are forked from a host and keep its command line


def orphaned_processes() -> list[Problem]:
    """A warning with the processes of runners that are gone. The kernel ends them with their runner; a stuck device may
    keep one.
    """
    left = sorted(_left_behind())
    if not left:
        return []
    numbers = " ".join(map(str, left))
    return [
        Problem(
            "processes",
            numbers,
            "ranks of an earlier runner that is gone are still there",
            f"end them with kill -9 {numbers}",
            "warning",
        )
    ]


def _left_behind() -> list[int]:
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline", "create_time", "status"]):
        words = process.info["cmdline"] or []
        if HOST_MODULE not in words or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        with contextlib.suppress(ValueError, IndexError):
            runner = int(words[words.index(HOST_MODULE) + 1])
            if not lives(runner, process.info["create_time"]):
                found.append(process.pid)
    return found


def lives(pid: int, moment: float) -> bool:
    """Whether the process that had this number at a moment (seconds since the epoch, within 1 s) is there still, and no
    zombie.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        return bool(process.create_time() <= moment + 1 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def is_rank(pid: object) -> bool:
    """Whether a process could be a rank of a runner: of this user, started by our modules or by Python's spawn.

    The number comes from a file: advice to end a process must never name another one.
    """
    import psutil

    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 1:
        return False
    try:
        process = psutil.Process(pid)
        words = process.cmdline()
        return bool(process.uids().real == os.getuid()) and any(
            word.startswith("runner.") or "multiprocessing" in word for word in words
        )
    except psutil.Error:
        return False
