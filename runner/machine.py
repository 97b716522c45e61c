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
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

DEVICES_VARIABLE = "RUNNER_DEVICES"  # a JSON list of Device fields, in place of what nvidia-smi says (tests)

NVIDIA_SMI_SECONDS = 120  # without persistence mode it takes 1 to 3 s a GPU
PEER_ACCESS_DRIVER = "550.40.07"


@dataclass(frozen=True)
class Finding:
    """One true statement about the machine, and what to do about it (`python -m runner doctor`)."""

    level: Literal["problem", "warning", "ok"]
    topic: str
    text: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """JSON-able."""
        return asdict(self)


@dataclass(frozen=True)
class Device:
    """One visible GPU."""

    index: int
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    uuid: str = ""
    driver: str = ""

    @property
    def is_slice(self) -> bool:
        """Whether this is a part of a card in MIG mode."""
        return self.uuid.startswith("MIG-")

    @property
    def can_be_cut(self) -> bool:
        """Whether MIG exists for it: A100 and A30 (8.0), and everything from Hopper (9.0) on."""
        return self.compute_capability == (8, 0) or self.compute_capability >= (9, 0)

    @property
    def has_bf16(self) -> bool:
        """bfloat16 arithmetic came with compute capability 8.0 (Ampere)."""
        return self.compute_capability >= (8, 0)


@lru_cache(maxsize=1)
def installed_devices() -> tuple[Device, ...]:
    """All GPUs of the machine, whatever is visible: as NVML lists them, else as nvidia-smi does (1 to 3 s a GPU)."""
    injected = os.environ.get(DEVICES_VARIABLE)
    if injected is not None:
        return tuple(
            Device(**{**item, "compute_capability": tuple(item["compute_capability"])}) for item in json.loads(injected)
        )
    return _from_nvml() or _from_nvidia_smi()


def _from_nvml() -> tuple[Device, ...]:
    """Through nvidia-ml-py, where it is installed: no process is started."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return tuple(_nvml_device(pynvml, index, driver) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        return ()  # no driver, or one that does not answer: nvidia-smi may know more


def _nvml_device(pynvml: ModuleType, index: int, driver: str) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    try:
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:  # it shares the host's
        memory = _physical_memory_bytes()
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    name, uuid = _text(pynvml.nvmlDeviceGetName(handle)), _text(pynvml.nvmlDeviceGetUUID(handle))
    return Device(index, name, memory, (int(capability[0]), int(capability[1])), uuid, driver)


def _text(value: str | bytes) -> str:
    """NVML's texts, which older versions give as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _from_nvidia_smi() -> tuple[Device, ...]:
    """What it lists counts, also where it ends non-zero (one card of several that has fallen off the bus)."""
    if shutil.which("nvidia-smi") is None:
        return ()
    query = "index,name,memory.total,compute_cap,uuid,driver_version"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(_device(line) for line in done.stdout.splitlines() if line.count(",") >= 5)


def device_files() -> list[Path]:
    """Device files of GPUs, which exist where a driver is loaded."""
    return sorted(path for path in Path("/dev").glob("nvidia[0-9]*"))


def _device(line: str) -> Device:
    index, _, rest = line.partition(",")
    name, mebibytes, capability, uuid, driver = (part.strip() for part in rest.rsplit(",", 4))
    major, _, minor = capability.partition(".")
    # A GPU that shares the host's memory says [N/A] for its own; old drivers do for the compute capability.
    memory = int(mebibytes) * 2**20 if mebibytes.isdigit() else _physical_memory_bytes()
    known = (int(major), int(minor or 0)) if major.isdigit() else (0, 0)
    return Device(int(index), name, memory, known, uuid, driver)


def lacks_peer_access(devices: list[Device]) -> bool:
    """Whether several of these GPUs cannot exchange data directly: GeForce RTX 40xx before driver 550.40.07.

    accelerate checks the same (utils/environment.py), but tells only ranks that its own launch command starts.
    """
    from packaging.version import InvalidVersion, Version

    if len(devices) < 2 or not any("RTX 40" in device.name for device in devices):
        return False
    try:
        return Version(devices[0].driver) < Version(PEER_ACCESS_DRIVER)
    except InvalidVersion:
        return True


def _physical_memory_bytes() -> int:
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
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        devices = [slices[0] if (slices := _slices_of(device)) else device for device in devices]
    cut = [device for device in devices if device.is_slice]
    return cut[:1] or devices  # a process sees one slice, whatever else is named


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
    return [found for card in devices for found in _slices_of(card) if found.uuid.startswith(part)][:1]


def _slices_of(card: Device) -> list[Device]:
    """The slices of a card in MIG mode, in nvidia-smi's order; none where it is whole."""
    if card.is_slice or not card.can_be_cut:
        return []
    found, current = [], -1
    for line in _listed():
        if heading := re.match(r"GPU (\d+):", line):
            current = int(heading[1])
        elif current == card.index and (cut := re.match(r"\s+MIG (\S*?(\d+)gb\S*)\s.*UUID: (MIG-[^)]+)\)", line)):
            name, memory = f"{card.name} MIG {cut[1]}", int(cut[2]) * 2**30
            found.append(replace(card, name=name, memory_bytes=memory, uuid=cut[3]))
    return found


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


@lru_cache(maxsize=1)
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
        "memory_bytes": _physical_memory_bytes(),
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


def torch_cuda() -> str | None:
    """CUDA version that the installed torch was built for, read from its version file; None for a CPU build."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    match = re.search(r"^cuda[^=]*=\s*'([\d.]+)'", Path(found.origin).with_name("version.py").read_text(), re.MULTILINE)
    return match.group(1) if match else None


def host_memory_bytes() -> int:
    """Physical memory of this machine, or the control group's limit where that is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


def resident_peak_bytes(pid: int) -> int:
    """The largest resident set of a process so far (VmHWM); 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration, ValueError):
        return 0
