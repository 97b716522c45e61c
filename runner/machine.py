"""What this machine is, read without importing torch."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import subprocess
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

DEVICES_VARIABLE = "RUNNER_DEVICES"  # a JSON list of Device fields, in place of what nvidia-smi says (tests)


@dataclass(frozen=True)
class Device:
    """One visible GPU."""

    index: int
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    uuid: str = ""

    @property
    def has_bf16(self) -> bool:
        """bfloat16 arithmetic came with compute capability 8.0 (Ampere)."""
        return self.compute_capability >= (8, 0)


@lru_cache(maxsize=1)
def installed_devices() -> tuple[Device, ...]:
    """All GPUs of the machine, whatever is visible; empty without a working nvidia-smi."""
    injected = os.environ.get(DEVICES_VARIABLE)
    if injected is not None:
        return tuple(
            Device(**{**item, "compute_capability": tuple(item["compute_capability"])}) for item in json.loads(injected)
        )
    if shutil.which("nvidia-smi") is None:
        return ()
    query = ["nvidia-smi", "--query-gpu=index,name,memory.total,compute_cap,uuid", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(_device(line) for line in answer.splitlines() if line.count(",") >= 4)


def _device(line: str) -> Device:
    index, _, rest = line.partition(",")
    name, mebibytes, capability, uuid = (part.strip() for part in rest.rsplit(",", 3))
    major, _, minor = capability.partition(".")
    # A GPU that shares the host's memory says [N/A] for its own; old drivers do for the compute capability.
    memory = int(mebibytes) * 2**20 if mebibytes.isdigit() else _host_memory_bytes()
    return Device(int(index), name, memory, (int(major), int(minor or 0)) if major.isdigit() else (0, 0), uuid)


def _host_memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def visible_devices(gpu_ids: str = "all") -> list[Device]:
    """GPUs a run may use: those in CUDA_VISIBLE_DEVICES (set but empty means none), then those in `gpu_ids`; in the
    order in which they are named there, which is the order of the ranks.
    """
    devices = list(installed_devices())
    for chosen in (os.environ.get("CUDA_VISIBLE_DEVICES"), None if gpu_ids == "all" else gpu_ids):
        if chosen is not None:
            wanted = [part.strip() for part in chosen.split(",") if part.strip()]
            devices = [device for part in wanted for device in _named(devices, part)]
    return devices


def _named(devices: list[Device], part: str) -> list[Device]:
    """The device that a part of CUDA_VISIBLE_DEVICES means: its index, the beginning of its UUID, or a slice's (MIG)
    UUID.
    """
    if part.startswith("MIG-"):
        return _slice(devices, part)
    return [
        device
        for device in devices
        if part == str(device.index) or (part.startswith("GPU-") and device.uuid.startswith(part))
    ][:1]


def _slice(devices: list[Device], part: str) -> list[Device]:
    """A slice, with the memory in its profile's name (`1g.10gb`) and its card's capability."""
    card: Device | None = None
    for line in _listed():
        if heading := re.match(r"GPU (\d+):", line):
            card = next((device for device in devices if device.index == int(heading[1])), None)
        elif (
            card
            and (found := re.match(r"\s+MIG (\S*?(\d+)gb\S*)\s.*UUID: (MIG-[^)]+)\)", line))
            and found[3].startswith(part)
        ):
            return [
                replace(card, name=f"{card.name} MIG {found[1]}", memory_bytes=int(found[2]) * 2**30, uuid=found[3])
            ]
    return []


@lru_cache(maxsize=1)
def _listed() -> tuple[str, ...]:
    """Cards and their slices, as `nvidia-smi -L` lists them."""
    try:
        return tuple(
            subprocess.run(
                ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=True
            ).stdout.splitlines()
        )
    except (OSError, subprocess.SubprocessError):
        return ()


def physical_cores() -> int:
    """Physical cores this process may run on (containers and taskset respected)."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def boot_id() -> str:
    """Changes with every boot, so that a process id of an earlier boot is not taken for a living one."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def description(gpu_ids: str = "all") -> dict[str, Any]:
    """The record's `hardware`: host, processor, cores, memory in bytes, GPUs."""
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_cores": physical_cores(),
        "memory_bytes": _host_memory_bytes(),
        "devices": [asdict(device) for device in visible_devices(gpu_ids)],
    }


def cpu_name() -> str:
    """The processor, as the kernel calls it."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(
                (line.partition(":")[2].strip() for line in file if line.startswith("model name")), platform.machine()
            )
    except OSError:
        return platform.processor() or platform.machine()


def is_installed(module: str) -> bool:
    """Whether a top-level module can be found; nothing is imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
