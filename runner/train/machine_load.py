"""What else the machine did during an epoch: other processes' work, waiting for a core, steal, the GPUs' clocks.

A time is comparable with another one only where the machine was the same for both; this is what says so.
Read at the borders of an epoch, never inside: two files of /proc, and one call of nvidia-smi where there are GPUs.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Reading:
    """Counters at one moment, all in seconds: of all cores together, of this job's processes, of
    this thread's waiting.
    """

    at: float
    busy: float
    stolen: float
    own: float
    waited: float


def reading() -> Reading | None:
    """The counters now; None where the system has no /proc."""
    try:
        with open("/proc/stat") as file:
            # user nice system idle iowait irq softirq steal: man 5 proc
            ticks = [int(part) for part in file.readline().split()[1:9]]
        with open("/proc/self/schedstat") as file:
            waited = int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
    busy = sum(ticks[index] for index in (0, 1, 2, 5, 6)) / _TICKS
    return Reading(time.monotonic(), busy, ticks[7] / _TICKS, _own_seconds(), waited)


def _own_seconds() -> float:
    """CPU seconds of this job's processes: the ranks of this machine and their loaders, children of one parent."""
    import psutil

    total = 0.0
    try:
        parent = psutil.Process(os.getppid())
        for process in [parent, *parent.children(recursive=True)]:
            try:
                times = process.cpu_times()
                total += times.user + times.system
            except psutil.Error:
                continue
    except psutil.Error:
        pass
    return total


def load_between(before: Reading | None, after: Reading | None, on_gpu: bool = False) -> dict[str, Any]:
    """The record's `epochs[].machine`.

    Returns:
        others_busy_cores: cores that other processes kept busy, on average.
        waited_share: share of the time in which rank 0's thread was ready to run and had no core.
        steal_share: share of all cores' time that a hypervisor gave to others.
        gpus: of each GPU its SM clock in MHz at the end of the epoch and its number of processes.
    """
    found: dict[str, Any] = {}
    if before is not None and after is not None and after.at > before.at:
        seconds = after.at - before.at
        cores = os.cpu_count() or 1
        others = (after.busy - before.busy) - (after.own - before.own)
        found = {
            "others_busy_cores": round(min(max(others / seconds, 0.0), float(cores)), 3),
            "waited_share": round(min(max((after.waited - before.waited) / seconds, 0.0), 1.0), 4),
            "steal_share": round(min(max((after.stolen - before.stolen) / seconds / cores, 0.0), 1.0), 4),
        }
    return {**found, "gpus": gpu_states()} if on_gpu else found


def gpu_states() -> list[dict[str, Any]]:
    """SM clock and number of computing processes of every GPU; [] without an answer of nvidia-smi."""
    clocks = _asked("--query-gpu=index,uuid,clocks.sm")
    processes = _asked("--query-compute-apps=gpu_uuid,pid")
    return [
        {
            "index": int(index),
            "sm_clock_mhz": int(clock) if clock.isdigit() else None,
            "processes": sum(line[0] == uuid for line in processes),
        }
        for index, uuid, clock in (line for line in clocks if len(line) == 3)
    ]


def _asked(query: str) -> list[list[str]]:
    try:
        answer = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[part.strip() for part in line.split(",")] for line in answer.splitlines() if line.strip()]
