"""GPUs as the driver's tools list them. There is none here: nvidia-smi is a script, NVML a module of the test's."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import machine, render
from runner.compose import compose_run
from runner.config.resolve import resolve_machine
from runner.config.schema import RunConfig
from runner.engines.deepspeed.json_file import deepspeed_config
from runner.preflight import devices
from runner.preflight.unused_keys import unused_keys

LINE = "{}, NVIDIA GeForce RTX {}, 24564, 8.9, GPU-{}, {}"


@pytest.fixture(autouse=True)
def no_injected_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    listed = machine.installed_devices
    monkeypatch.delenv(machine.DEVICES_VARIABLE, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    listed.cache_clear()
    yield
    listed.cache_clear()


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], status: int = 0) -> None:
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + f"\nEND\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_what_nvidia_smi_listed_counts_although_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, [LINE.format(0, 4090, "a", "535.10")], status=15)
    assert [device.memory_bytes for device in machine.installed_devices()] == [24564 * 2**20]


def test_nvml_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced pynvml with one H100; nvidia-smi would list another card."""
    nvidia_smi(tmp_path, monkeypatch, [LINE.format(0, 4090, "a", "535.10")])
    fake = types.SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"580.1",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=80 * 2**30),
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetName=lambda handle: b"NVIDIA H100",
        nvmlDeviceGetUUID=lambda handle: "GPU-h",
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert machine.installed_devices() == (machine.Device(0, "NVIDIA H100", 80 * 2**30, (9, 0), "GPU-h", "580.1"),)


def test_gpus_that_nobody_can_list_never_become_a_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(machine, "device_files", lambda: [Path("/dev/nvidia0")])
    (problem,) = devices.check_unreadable(RunConfig())
    assert (problem.key, problem.severity) == ("launcher.device", "error")
    assert "/dev/nvidia0" in problem.why
    assert devices.check_unreadable(RunConfig.model_validate({"launcher": {"device": "cpu"}})) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.check_unreadable(RunConfig()) == []


@pytest.mark.parametrize(
    ("cards", "driver", "expected"),
    [
        ((4090, 4090), "535.104.05", {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}),
        ((4090, 4090), "550.40.07", {}),
        ((4090,), "535.104.05", {}),
        ((3090, 3090), "535.104.05", {}),
        ((3090, 4080), "545.23", {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}),
    ],
)
def test_several_rtx_40_with_an_old_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cards: tuple[int, ...], driver: str, expected: dict[str, str]
) -> None:
    """Ranks die in NCCL without these two variables, which accelerate sets in its own launch command only."""
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    monkeypatch.delenv("NCCL_IB_DISABLE", raising=False)
    nvidia_smi(tmp_path, monkeypatch, [LINE.format(i, card, i, driver) for i, card in enumerate(cards)])
    config, _ = resolve_machine(RunConfig.model_validate({"launcher": {"device": "cuda"}}))
    variables = render.rank_environment(config)
    assert {name: value for name, value in variables.items() if name.startswith("NCCL_")} == expected


def test_what_the_user_set_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, [LINE.format(i, 4090, i, "535.104.05") for i in (0, 1)])
    monkeypatch.setenv("NCCL_P2P_DISABLE", "0")
    config, _ = resolve_machine(RunConfig.model_validate({"launcher": {"device": "cuda"}}))
    assert "NCCL_P2P_DISABLE" not in render.rank_environment(config)


def test_a_process_sees_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slices in CUDA_VISIBLE_DEVICES are one device; without the variable a cut card is its first slice."""
    card = machine.Device(0, "NVIDIA A100", 40 * 2**30, (8, 0), "GPU-0")
    monkeypatch.setattr(machine, "installed_devices", lambda: (card,))
    listing = ("GPU 0: NVIDIA A100 (UUID: GPU-0)", *(f"  MIG {n}g.{n}0gb Device 0: (UUID: MIG-{n})" for n in (1, 2)))
    monkeypatch.setattr(machine, "_listed", lambda: listing)
    assert [(device.uuid, device.memory_bytes) for device in machine.visible_devices()] == [("MIG-1", 10 * 2**30)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2,MIG-1")
    assert [(device.uuid, device.memory_bytes) for device in machine.visible_devices()] == [("MIG-2", 20 * 2**30)]


def test_fork_is_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    card = machine.Device(0, "NVIDIA A100", 40 * 2**30, (8, 0), "GPU-0")
    monkeypatch.setattr(machine, "visible_devices", lambda gpu_ids="all": [card])
    monkeypatch.setattr(machine, "installed_devices", lambda: (card,))
    launcher = {"device": "cuda", "num_processes": 1, "start_method": "fork"}
    found = devices.check_devices(RunConfig.model_validate({"launcher": launcher}))
    assert "launcher.start_method" in [problem.key for problem in found]


def test_what_a_group_sets_is_no_mistake_of_the_user() -> None:
    """`precision=fp16 launcher=ddp`: three numbers of the group mean nothing to torch's loss scaler."""
    composed = compose_run(["precision=fp16", "launcher=ddp"])
    assert unused_keys(composed.config, composed.explicit) == []
    typed = compose_run(["precision=fp16", "launcher=ddp", "precision.hysteresis=3"])
    assert [problem.key for problem in unused_keys(typed.config, typed.explicit)] == ["precision.hysteresis"]


def test_nvme_buffers_hold_the_largest_tensor() -> None:
    """Embeddings of 128,100 × 1,536 are 196,761,600 elements; DeepSpeed's default buffer has 100,000,000."""
    model = {"config": {"model_type": "deberta-v2", "vocab_size": 128_100, "hidden_size": 1536}}
    sections = {"zero": {"stage": 3}, "offload": {"name": "nvme", "params": "nvme", "nvme_path": "/nvme"}}
    config = RunConfig.model_validate({"model": model, **sections})
    config.optimizer.owner = config.scheduler.owner = "client"
    config, _ = resolve_machine(config)
    assert deepspeed_config(config, 10)["zero_optimization"]["offload_param"]["buffer_size"] == 128_100 * 1536
    small = config.model_copy(deep=True)
    small.model.config = {"model_type": "deberta-v2", "vocab_size": 100, "hidden_size": 8}
    assert deepspeed_config(small, 10)["zero_optimization"]["offload_param"]["buffer_size"] == 100_000_000
