"""Whether the process that writes a record still lives, so that a killed run does not stay `running`."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from runner.machine import boot_id
from runner.report.reading import integer, number, text

Liveness = Literal["alive", "dead", "unknown"]
_CREATE_TIME_TOLERANCE_SECONDS = 2.0


@lru_cache(maxsize=1)
def this_host() -> str:
    """Name of this machine, as the record's `runner.host` has it."""
    return platform.node()


def runner_liveness(runner: Mapping[str, Any]) -> Liveness:
    """Judge the record's `runner` mapping: `pid`, `create_time` (seconds since the epoch), `host`, `boot_id`.

    A process number is reused after a while and after every boot, so the number alone proves nothing:
    host, boot and (within 2 s) start time must agree. Another host cannot be judged from here.
    """
    pid, create_time = integer(runner.get("pid")), number(runner.get("create_time"))
    host, boot = text(runner.get("host")), text(runner.get("boot_id"))
    if pid is None or pid <= 0 or host != this_host():
        return "unknown"
    if boot and boot_id() and boot != boot_id():
        return "dead"
    return "alive" if _process_matches(pid, create_time) else "dead"


def _process_matches(pid: int, create_time: float | None) -> bool:
    """Whether `pid` is a live process (no zombie) that started at `create_time`, when that is known."""
    import psutil

    try:
        process = psutil.Process(pid)
        started, state = process.create_time(), process.status()
    except psutil.Error:
        return False
    if state == psutil.STATUS_ZOMBIE:
        return False
    return create_time is None or abs(started - create_time) <= _CREATE_TIME_TOLERANCE_SECONDS
