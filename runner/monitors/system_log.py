"""`system.jsonl`: processor, memory, disk and GPUs every few seconds, sampled by a thread of the waiting runner.

A line holds `elapsed_seconds` (since the command was typed), `step`, `cpu_percent` (of all cores together),
`host_memory_bytes` (used), `disk_free_bytes` (of the run folder's volume), `rank_memory_bytes` and `rank_cpu_percent`
(by rank) and, where NVML is there, `gpu`: index → utilization_percent, memory_bytes, power_watts, temperature_celsius.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from runner.rundir.heartbeat import read_heartbeats

SYSTEM_FILE = "system.jsonl"
INTERVAL_SECONDS = 5.0
FIRST_SECONDS = 2.0  # a short run, too, has a line


@contextlib.contextmanager
def sampled(run_dir: Path, started_monotonic: float) -> Iterator[None]:
    """Inside, lines are appended to `system.jsonl`; whatever cannot be read or written is left out.

    Args:
        started_monotonic: when the command was typed.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_sample_until, args=(ended, run_dir, started_monotonic), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=0.2)


def _sample_until(ended: threading.Event, run_dir: Path, started: float) -> None:
    sampler, pause = Sampler(run_dir), FIRST_SECONDS
    while not ended.wait(pause):
        pause = INTERVAL_SECONDS
        with contextlib.suppress(OSError, psutil.Error):
            line = json.dumps({"elapsed_seconds": round(time.monotonic() - started, 3), **sampler.sample()})
            with open(run_dir / SYSTEM_FILE, "a", encoding="utf-8") as file:
                file.write(line + "\n")


class Sampler:
    """Reads the machine; percentages are over the time since the last sample."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._ranks: dict[int, psutil.Process] = {}
        self._gpus = _gpu_handles()
        psutil.cpu_percent()

    def sample(self) -> dict[str, Any]:
        """One line's figures, without its time."""
        beats = read_heartbeats(self._run_dir)
        found: dict[str, Any] = {
            "step": int(beats.get(0, {}).get("step") or 0),
            "cpu_percent": psutil.cpu_percent(),
            "host_memory_bytes": psutil.virtual_memory().used,
            "disk_free_bytes": shutil.disk_usage(self._run_dir).free,
            "rank_memory_bytes": {},
            "rank_cpu_percent": {},
        }
        for rank, beat in sorted(beats.items()):
            with contextlib.suppress(psutil.Error, KeyError):
                process = self._process(rank, int(beat["pid"]))
                found["rank_memory_bytes"][str(rank)] = process.memory_info().rss
                found["rank_cpu_percent"][str(rank)] = process.cpu_percent()
        return found | ({"gpu": _gpus(self._gpus)} if self._gpus else {})

    def _process(self, rank: int, pid: int) -> psutil.Process:
        known = self._ranks.get(rank)
        if known is None or known.pid != pid:
            known = self._ranks[rank] = psutil.Process(pid)
        return known


def _gpu_handles() -> list[Any]:
    """NVML's handles; [] without a GPU or without nvidia-ml-py."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # no package, no driver, no permission: each has a class of its own  # noqa: BLE001
        return []


def _gpus(handles: list[Any]) -> dict[str, dict[str, float]]:
    import pynvml

    asked = {
        "utilization_percent": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory_bytes": lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
        "power_watts": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "temperature_celsius": lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    }
    found: dict[str, dict[str, float]] = {}
    for index, handle in enumerate(handles):
        figures = found[str(index)] = {}
        for name, ask in asked.items():
            with contextlib.suppress(pynvml.NVMLError):
                figures[name] = float(ask(handle))  # type: ignore[no-untyped-call]
    return found
