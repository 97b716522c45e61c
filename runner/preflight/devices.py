"""Devices and number formats asked for, against what this machine has. Nothing is started and torch is not imported."""

from __future__ import annotations

import os

from runner import machine
from runner.config.schema import RunConfig
from runner.errors import Problem


def check_precision(config: RunConfig) -> list[Problem]:
    """Number formats that the device found cannot compute in, or that the model is known to overflow."""
    name, devices = config.precision.name, machine.visible_devices(config.launcher.gpu_ids)
    if config.launcher.device == "cpu":
        if name == "fp16":
            return [
                Problem(
                    "precision",
                    name,
                    "a CPU does not train in fp16 (DDP would compute in fp32 silently)",
                    "use precision=fp32 or precision=bf16",
                )
            ]
        return []
    old = [device for device in devices if not device.has_bf16]
    if name == "bf16" and old:
        capability = ".".join(map(str, old[0].compute_capability))
        return [
            Problem(
                "precision",
                name,
                f"{old[0].name} has compute capability {capability}, bf16 needs 8.0",
                f"use precision={'fp32' if config.model.fp16_overflows else 'fp16'}",
            )
        ]
    if name == "fp16" and config.model.fp16_overflows:
        why = (
            f"model={config.model.name} was trained in bf16; in fp16 its activations overflow and the loss becomes NaN"
        )
        return [Problem("precision", name, why, f"use precision={'fp32' if old or not devices else 'bf16'}", "warning")]
    return []


def check_devices(config: RunConfig) -> list[Problem]:
    """Ranks and device ids against the visible GPUs (CUDA_VISIBLE_DEVICES respected, an empty one too)."""
    installed, shown = machine.installed_devices(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if config.launcher.device == "cpu":
        return _cpu_with_gpus_present(config, shown) if installed else []
    if not installed:
        return [
            Problem(
                "launcher.device", "cuda", "no CUDA device visible (nvidia-smi lists none)", "use launcher.device=cpu"
            )
        ]
    if not machine.visible_devices():
        return [
            Problem(
                "launcher.device",
                "cuda",
                f"no CUDA device visible: {_hiding(shown)}",
                "unset CUDA_VISIBLE_DEVICES, or use launcher.device=cpu",
            )
        ]
    return _absent_ids(config) + _too_many_ranks(config) + _forked_on_cuda(config) + _cpu_build()


def _hiding(shown: str | None) -> str:
    """What CUDA_VISIBLE_DEVICES does, in words."""
    if not (shown or "").strip():
        return "CUDA_VISIBLE_DEVICES is empty"
    return f"CUDA_VISIBLE_DEVICES={shown} names none of this machine's devices {_ids(machine.installed_devices())}"


def _cpu_with_gpus_present(config: RunConfig, shown: str | None) -> list[Problem]:
    """GPUs are installed, but the run uses the CPU: silently only where that was asked for."""
    if config.launcher.gpu_ids != "all":
        return [
            Problem(
                "launcher.gpu_ids",
                config.launcher.gpu_ids,
                f"no such visible device; visible are {_ids(machine.visible_devices()) or 'none'}",
                "use launcher.gpu_ids=all",
            )
        ]
    if shown and shown.strip() not in ("-1", "NoDevFiles") and not machine.visible_devices():
        return [
            Problem(
                "launcher.device",
                "cpu",
                f"the CPU is used: {_hiding(shown)}",
                "unset CUDA_VISIBLE_DEVICES to use the GPUs",
                "warning",
            )
        ]
    return []


def _absent_ids(config: RunConfig) -> list[Problem]:
    if config.launcher.gpu_ids == "all":
        return []
    known = {str(device.index) for device in machine.visible_devices()}
    absent = [part.strip() for part in config.launcher.gpu_ids.split(",") if part.strip() not in known]
    if not absent:
        return []
    return [
        Problem(
            "launcher.gpu_ids",
            config.launcher.gpu_ids,
            f"no such visible device: {', '.join(absent)}; visible are {_ids(machine.visible_devices())}",
            "use launcher.gpu_ids=all",
        )
    ]


def _too_many_ranks(config: RunConfig) -> list[Problem]:
    ranks, found = config.launcher.num_processes, len(machine.visible_devices(config.launcher.gpu_ids))
    assert isinstance(ranks, int), "resolved before"
    if ranks <= found or found == 0:
        return []
    why = (
        f"{ranks} ranks, but {found} CUDA device{'s' if found > 1 else ''} visible: NCCL refuses two ranks on one "
        "device"
    )
    return [Problem("launcher.num_processes", ranks, why, f"use launcher.num_processes={found}")]


def check_unreadable(config: RunConfig) -> list[Problem]:
    """GPUs that the driver has made device files for but that nobody can list: never silently a run on the CPU.

    Args:
        config: as composed, with `launcher.device` as it was chosen.
    """
    if config.launcher.device == "cpu" or machine.installed_devices() or not machine.device_files():
        return []
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip():
        return []  # the user has hidden them all
    why = (
        f"GPUs are installed ({', '.join(map(str, machine.device_files()))}) but neither NVML nor nvidia-smi can "
        "list them"
    )
    fix = "look at what nvidia-smi prints, or use launcher.device=cpu"
    return [Problem("launcher.device", config.launcher.device, why, fix)]


def _forked_on_cuda(config: RunConfig) -> list[Problem]:
    if config.launcher.start_method != "fork":
        return []
    why = "forked ranks cannot use CUDA where their parent has touched the driver"
    return [Problem("launcher.start_method", "fork", why, "use launcher.start_method=spawn, or leave it out")]


def _cpu_build() -> list[Problem]:
    if os.environ.get(machine.DEVICES_VARIABLE) is not None or machine.torch_cuda() is not None:
        return []
    return [
        Problem(
            "launcher.device",
            "cuda",
            "the installed torch is a CPU build",
            "install torch's CUDA build, or use launcher.device=cpu",
        )
    ]


def _ids(devices: list[machine.Device] | tuple[machine.Device, ...]) -> str:
    return ", ".join(str(device.index) for device in devices)


def placement(config: RunConfig) -> str:
    """Which rank works on which device, in words."""
    ranks, devices = config.launcher.num_processes, machine.visible_devices(config.launcher.gpu_ids)
    assert isinstance(ranks, int), "resolved before"
    if config.launcher.device == "cpu" or not devices:
        return f"rank 0 → {config.launcher.device}" if ranks == 1 else f"ranks 0–{ranks - 1} → {config.launcher.device}"
    return (
        ", ".join(f"rank {rank} → GPU {devices[rank % len(devices)].index}" for rank in range(ranks))
        + f" ({devices[0].name})"
    )
