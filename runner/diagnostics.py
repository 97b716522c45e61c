"""What this machine can and cannot do, as findings: nothing is started and torch is not imported.

Every statement is read from the machine at this moment. A finding is a problem only when it would stop
the embedded default run.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from runner import machine, paths
from runner.config.schema import RunConfig
from runner.engines import every_engine
from runner.machine import Finding, host_memory_bytes
from runner.memory.amounts import ask, gib

NEEDED = (
    "torch",
    "transformers",
    "accelerate",
    "deepspeed",
    "datasets",
    "hydra-core",
    "omegaconf",
    "pydantic",
    "rich",
    "tokenizers",
)
TRACKERS = ("wandb", "mlflow", "tensorboard")
GIB = 2**30
SMALL_ROOT_BYTES = 100 * GIB
LITTLE_FREE_BYTES = 20 * GIB
HUB_TIMEOUT_SECONDS = 3.0


def examine() -> list[Finding]:
    """All findings, problems first, then warnings; a check that breaks becomes a warning that says so."""
    found: list[Finding] = []
    for check in CHECKS:
        try:
            found += check()
        except Exception as error:  # noqa: BLE001 - a doctor that dies of one symptom helps nobody
            found.append(Finding("warning", check.__name__.removeprefix("check_"), f"could not be checked ({error})"))
    order = {"problem": 0, "warning": 1, "ok": 2}
    return sorted(found, key=lambda finding: order[finding.level])


def version_of(package: str) -> str | None:
    """Installed version, without importing the package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_versions() -> Iterator[Finding]:
    """The stack's packages: all there, and each within what the others ask for."""
    versions = {name: version_of(name) for name in NEEDED}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        yield Finding("problem", "packages", f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    conflicts = [text for name, version in versions.items() if version for text in _conflicts(name)]
    for text in conflicts:
        yield Finding("warning", "packages", text, "pip install -r constraints.txt")
    listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    yield Finding("ok", "packages", listed + ("" if conflicts or missing else "; each within what the others ask for"))


def _conflicts(package: str) -> Iterator[str]:
    """Requirements of a package that another installed package of the stack does not meet."""
    from packaging.requirements import Requirement

    for line in importlib.metadata.requires(package) or []:
        requirement = Requirement(line)
        if requirement.name not in NEEDED or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        version = version_of(requirement.name)
        if version and not requirement.specifier.contains(version, prereleases=True):
            yield (
                f"{package} {version_of(package)} asks for {requirement.name}{requirement.specifier}, {version} is "
                "installed"
            )


def check_devices() -> Iterator[Finding]:
    """GPUs, their memory, and whether torch and the driver can use them; otherwise the CPU's memory."""
    memory, cores = gib(host_memory_bytes(), 0), machine.physical_cores()
    yield Finding("ok", "machine", f"{cores} CPU cores, {memory} of main memory")
    gpus, cuda = machine.visible_devices(), machine.torch_cuda()
    if not gpus:
        hidden = bool(machine.installed_devices())
        why = "CUDA_VISIBLE_DEVICES hides the GPUs" if hidden else "no GPU found (nvidia-smi lists none)"
        yield Finding("ok", "devices", f"{why}: runs use the CPU, 2 ranks unless set otherwise")
        return
    yield Finding("ok", "devices", ", ".join(f"{gpu.name} ({gib(gpu.memory_bytes, 0)})" for gpu in gpus))
    if cuda is None:
        yield Finding(
            "problem",
            "devices",
            "there is a GPU, but the installed torch is a CPU build",
            "install torch's CUDA build, or run with launcher.device=cpu",
        )
        return
    match = re.search(r"CUDA Version:\s*([\d.]+)", ask("nvidia-smi") or "")
    if match and int(match.group(1).split(".")[0]) < int(cuda.split(".")[0]):
        yield Finding(
            "problem",
            "devices",
            f"the driver supports CUDA {match.group(1)}, torch was built for {cuda}",
            "update the driver or install torch for an older CUDA",
        )


def check_precision() -> Iterator[Finding]:
    """Which half-precision formats the devices compute in."""
    gpus = machine.visible_devices()
    if gpus:
        modern = all(gpu.has_bf16 for gpu in gpus)
        yield Finding(
            "ok",
            "precision",
            "fp16 and bf16" if modern else "fp16; bf16 needs compute capability 8.0 (Ampere) on every GPU",
        )
        return
    flags = _cpu_flags()
    native = [name for name in ("amx_bf16", "avx512_bf16") if name in flags]
    bf16 = f"bf16 with native instructions ({', '.join(native)})" if native else "bf16 works but is emulated and slow"
    yield Finding("ok", "precision", f"fp32; {bf16}; fp16 needs a GPU")


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    match = re.search(r"^flags\s*:\s*(.*)$", text, re.MULTILINE)
    return set(match.group(1).split()) if match else set()


def check_interconnect() -> Iterator[Finding]:
    """How GPUs reach each other, and whether ranks can meet on this machine at all."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        yield Finding(
            "problem", "interconnect", f"ranks cannot meet on 127.0.0.1 ({error})", "bring the loopback interface up"
        )
    if len(machine.visible_devices()) < 2:
        return
    topology = ask("nvidia-smi", "topo", "-m") or ""
    links = sorted(
        {
            word
            for line in topology.splitlines()
            if line.startswith("GPU")
            for word in line.split()[1:]
            if re.fullmatch(r"NV\d+|PIX|PXB|PHB|NODE|SYS", word)
        }
    )
    if not links:
        yield Finding("warning", "interconnect", "nvidia-smi topo shows no links between the GPUs")
        return
    direct = any(link.startswith("NV") for link in links)
    yield Finding(
        "ok",
        "interconnect",
        f"GPUs are linked by {', '.join(links)}"
        + ("" if direct else ": no NVLink, ZeRO-3 will wait for communication"),
    )


def check_compilers() -> Iterator[Finding]:
    """Compilers on PATH, and what the engines say of them."""
    tools = {name: shutil.which(name) for name in ("g++", "ninja", "nvcc")}
    there, absent = [name for name, path in tools.items() if path], [name for name, path in tools.items() if not path]
    words = [
        f"found {', '.join(there)}" if there else "none found",
        f"not on PATH: {', '.join(absent)}" if absent else "",
    ]
    yield Finding("ok", "compilers", "; ".join(word for word in words if word) + "; the default run compiles nothing")
    for engine in every_engine():
        yield from engine.machine_findings()


def check_disks() -> Iterator[Finding]:
    """Caches and their free space, the folder runs write to, shared memory."""
    from runner.preflight.output_folders import locations

    here = Path.cwd()
    if not os.access(here, os.W_OK):
        yield Finding(
            "problem", "disk", f"{here} is not writable, and runs write to ./outputs", "change to a folder of yours"
        )
    elif shutil.disk_usage(here).free < GIB:
        yield Finding(
            "problem", "disk", f"less than 1 GiB is free in {here}", "free some space, or change to a larger disk"
        )
    yield from _cache(paths.hf_home())
    for place in locations(RunConfig())[::2]:  # besides the hub's
        little = place.free_bytes < GIB
        yield Finding(
            "warning" if little else "ok",
            "caches",
            f"{place.what} go to {place.path}: {gib(place.free_bytes, 1)} free",
            "set cache_dir=DIR (it moves all caches)" if little else "",
        )
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).total < GIB:
        size = shutil.disk_usage(shared).total // 2**20
        yield Finding(
            "warning",
            "disk",
            f"/dev/shm has only {size} MiB: NCCL and data loader workers may fail",
            "start the container with --shm-size=8g",
        )


def _cache(folder: Path) -> Iterator[Finding]:
    """Whether the hub's cache is on a volume with free space."""
    present = next(path for path in (folder, *folder.parents) if path.exists())
    usage = shutil.disk_usage(present)
    on_root = os.stat(present).st_dev == os.stat("/").st_dev
    state = f"HF_HOME is {folder}: {usage.free / GIB:.0f} of {gib(usage.total, 0)} free" + (
        ", on the root disk" if on_root else ""
    )
    if not os.access(present, os.W_OK):
        yield Finding(
            "warning", "caches", f"{state}, not writable", "export HF_HOME=/a/folder/of/yours, or set cache_dir=DIR"
        )
    elif usage.free < LITTLE_FREE_BYTES or (on_root and usage.total < SMALL_ROOT_BYTES):
        yield Finding(
            "warning", "caches", state, f"export HF_HOME={_roomier(usage.free)}/huggingface, or set cache_dir=DIR"
        )
    else:
        yield Finding("ok", "caches", state)


def _roomier(free: int) -> str:
    """The mounted disk with the most free space, when it has more than `free` bytes; else a placeholder."""
    best, name = free, "/a/larger/disk"
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return name
    for line in lines:
        device, mount = line.split()[:2]
        if (
            device.startswith("/dev/")
            and os.path.isdir(mount)
            and os.access(mount, os.W_OK)
            and shutil.disk_usage(mount).free > best
        ):
            best, name = shutil.disk_usage(mount).free, mount.rstrip("/") or "/"
    return name


def check_network() -> Iterator[Finding]:
    """Whether the hub answers, in at most three seconds; nothing is asked in offline mode."""
    from runner.preflight import assets

    if assets.offline_asked_for():
        yield Finding("ok", "network", "offline mode is on (HF_HUB_OFFLINE or the like): no connection is tried")
        return
    answered: list[bool] = []
    # A thread, because a name look-up without a network obeys no time limit.
    probe = threading.Thread(target=lambda: answered.append(assets.hub_reachable(HUB_TIMEOUT_SECONDS)), daemon=True)
    probe.start()
    probe.join(HUB_TIMEOUT_SECONDS)
    if answered and answered[0]:
        yield Finding("ok", "network", "the hub can be reached")
    else:
        yield Finding(
            "warning",
            "network",
            "the hub cannot be reached: only cached, local and bundled models and data can be used",
            "export HF_HUB_OFFLINE=1, so that nothing waits for it",
        )


def check_trackers() -> Iterator[Finding]:
    """Experiment trackers that are installed."""
    found = [f"{name} {version_of(name)}" for name in TRACKERS if version_of(name)]
    yield Finding(
        "ok",
        "trackers",
        ", ".join(found) or f"none of {', '.join(TRACKERS)} is installed; records are kept in any case",
    )


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_versions,
    check_devices,
    check_precision,
    check_interconnect,
    check_compilers,
    check_disks,
    check_network,
    check_trackers,
)


def summary(findings: list[Finding]) -> dict[str, Any]:
    """What `--json` prints."""
    count = {level: sum(finding.level == level for finding in findings) for level in ("problem", "warning", "ok")}
    return {
        "problems": count["problem"],
        "warnings": count["warning"],
        "findings": [finding.as_dict() for finding in findings],
    }
