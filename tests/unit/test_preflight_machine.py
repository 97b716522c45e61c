"""Devices, number formats, compilers and packages asked for against what a machine has; pretended
machines, no torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from runner import machine
from runner.compose import compose_run
from runner.engines.deepspeed import ops
from runner.engines.deepspeed import software as deepspeed_software
from runner.engines.deepspeed.swap_folder import into_own_folder, swap_folder
from runner.errors import Problem, RequestError
from runner.preflight.check import check
from runner.preflight.devices import placement
from runner.preflight.orphaned_processes import orphaned_processes
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def own_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine.installed_devices.cache_clear()
    yield
    machine.installed_devices.cache_clear()


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    def pretend(count: int, capability: tuple[int, int] = (8, 0)) -> None:
        devices = [
            {
                "index": i,
                "name": "Test GPU",
                "memory_bytes": 24 * 2**30,
                "compute_capability": capability,
                "uuid": f"GPU-{i}abc",
            }
            for i in range(count)
        ]
        monkeypatch.setenv(machine.DEVICES_VARIABLE, json.dumps(devices))
        machine.installed_devices.cache_clear()

    return pretend


def found(tmp_path: Path, *overrides: str, starting: bool = True) -> list[Problem]:
    """Everything the checks say about a run."""
    try:
        return check(compose_run([*overrides, f'hydra.run.dir="{tmp_path}/run"']), starting).notices
    except RequestError as error:
        return error.problems


def one(problems: list[Problem], key: str) -> Problem:
    matching = [problem for problem in problems if problem.key == key]
    assert len(matching) == 1, [problem.line() for problem in problems]
    return matching[0]


CUDA = ("launcher=ddp", "launcher.device=cuda", "precision=fp32")


def test_cuda_without_a_device(gpus, tmp_path: Path) -> None:
    """`launcher.device=cuda` on a machine without a GPU, or with fewer than ranks."""
    gpus(0)
    problem = one(found(tmp_path, *CUDA, "launcher.num_processes=2"), "launcher.device")
    assert problem.severity == "error"
    assert "no CUDA device visible" in problem.why
    assert problem.fix == "use launcher.device=cpu"


@pytest.mark.parametrize(
    ("shown", "words"),
    [("", "CUDA_VISIBLE_DEVICES is empty"), ("7", "CUDA_VISIBLE_DEVICES=7 names none of this machine's devices 0")],
)
def test_hidden_devices(shown: str, words: str, gpus, tmp_path: Path, monkeypatch) -> None:
    """`CUDA_VISIBLE_DEVICES=` and `=7`."""
    gpus(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert words in one(found(tmp_path, *CUDA), "launcher.device").why


def test_a_wrong_id_sends_an_automatic_run_to_the_cpu_with_a_warning(gpus, tmp_path: Path, monkeypatch) -> None:
    gpus(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert one(found(tmp_path), "launcher.device").severity == "warning"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not [problem for problem in found(tmp_path) if problem.key == "launcher.device"]


def test_more_ranks_than_devices(gpus, tmp_path: Path) -> None:
    """Both numbers; NCCL refuses two ranks on one device, so there is no way to ask for it."""
    gpus(1)
    problem = one(found(tmp_path, *CUDA, "launcher.num_processes=2"), "launcher.num_processes")
    assert "2 ranks, but 1 CUDA device visible" in problem.why
    assert problem.fix == "use launcher.num_processes=1"


def test_ids_that_do_not_exist(gpus, tmp_path: Path) -> None:
    gpus(2)
    assert (
        "no such visible device: 5; visible are 0, 1"
        in one(found(tmp_path, *CUDA, 'launcher.gpu_ids="0,5"'), "launcher.gpu_ids").why
    )
    assert (
        "no such visible device" in one(found(tmp_path, "launcher=ddp", "launcher.gpu_ids='5'"), "launcher.gpu_ids").why
    )


def test_the_plan_says_which_rank_works_where(gpus, tmp_path: Path) -> None:
    gpus(2)
    config = check(
        compose_run([*CUDA, "launcher.num_processes=2", f'hydra.run.dir="{tmp_path}/run"']),
        starting=False,
    ).config
    assert placement(config) == "rank 0 → GPU 0, rank 1 → GPU 1 (Test GPU)"


def test_devices_by_uuid_and_slice(gpus, monkeypatch) -> None:
    gpus(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1abc")
    assert [device.index for device in machine.visible_devices()] == [1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert [device.index for device in machine.visible_devices()] == [1, 0]  # rank 0 works on GPU 1
    assert [device.index for device in machine.visible_devices("0")] == [0]


def test_a_slice_is_one_device_with_its_own_memory(gpus, monkeypatch) -> None:
    """The listing is nvidia-smi's, from a machine with two cards of which the second is cut."""
    listing = (
        "GPU 0: Test GPU (UUID: GPU-0abc)",
        "GPU 1: Test GPU (UUID: GPU-1abc)",
        "  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)",
        "  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)",
    )
    gpus(2)
    monkeypatch.setattr(machine, "_listed", lambda: listing)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb")
    assert [(device.index, device.name, device.memory_bytes) for device in machine.visible_devices()] == [
        (1, "Test GPU MIG 3g.20gb", 20 * 2**30)
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-unknown")
    assert machine.visible_devices() == []


def test_a_gpu_without_memory_of_its_own_has_the_hosts() -> None:
    """What nvidia-smi says of a GPU that shares the host's memory."""
    device = machine._device("0, NVIDIA GB10, [N/A], 12.1, GPU-7, 580.65.06")
    assert (device.memory_bytes, device.compute_capability) == (psutil.virtual_memory().total, (12, 1))


def test_what_a_machine_lacks_is_a_warning_where_files_are_only_rendered(gpus, tmp_path: Path) -> None:
    gpus(0)
    assert one(found(tmp_path, *CUDA, starting=False), "launcher.device").severity == "warning"


def test_fp16_at_zero_0_is_refused(gpus, tmp_path: Path) -> None:
    """DeepSpeed 0.19.8 divides the gradients by a loss scale by which its backward never multiplied the loss."""
    gpus(2, (7, 0))
    problem = one(
        found(tmp_path, *CUDA, "launcher=deepspeed", "zero_stage=0", "precision=fp16", starting=False), "zero_stage"
    )
    assert (problem.severity, problem.fix) == (
        "error",
        "use zero_stage=1, launcher=ddp, or precision=bf16 (fp32 on older GPUs)",
    )


def test_torchs_loss_scaler_takes_its_own_numbers_only(gpus, tmp_path: Path) -> None:
    gpus(2, (7, 0))
    typed = (
        "launcher=ddp",
        "launcher.device=cuda",
        "precision=fp16",
        "precision.hysteresis=4",
        "precision.initial_scale_power=10",
    )
    problems = found(tmp_path, *typed, starting=False)
    assert (
        one(problems, "precision.hysteresis").why
        == "this has no effect: torch's loss scaler, which the other launchers use, has no such number"
    )
    assert not [problem for problem in problems if problem.key == "precision.initial_scale_power"]


def test_precision_the_device_cannot_do(gpus, tmp_path: Path) -> None:
    """Number formats that the device lacks are refused, with the formats that it has."""
    gpus(0)
    assert one(found(tmp_path, "precision=fp16"), "precision").fix == "use precision=fp32 or precision=bf16"
    gpus(1, (7, 0))
    old = one(found(tmp_path, "launcher=ddp", "precision=bf16"), "precision")
    assert "7.0, bf16 needs 8.0" in old.why
    assert old.fix == "use precision=fp16"
    gpus(1, (8, 0))
    assert not [problem for problem in found(tmp_path, "launcher=ddp", "precision=bf16") if problem.severity == "error"]


T5 = (
    "recipe=blenderbot_mudoconv",
    "model=t5_small",
    "dataset=dialogue_sample",
    "model.init=random",
    "model.tokenizer=bundled:blenderbot_tiny",
)


@pytest.mark.parametrize(("capability", "fix"), [((8, 0), "use precision=bf16"), ((7, 5), "use precision=fp32")])
def test_a_model_that_overflows_in_fp16(capability, fix, gpus, tmp_path: Path) -> None:
    """A warning with the format that the device supports; `auto` never chooses fp16 for it."""
    gpus(1, capability)
    problem = one(found(tmp_path, *T5, "launcher=ddp", "precision=fp16"), "precision")
    assert (problem.severity, problem.fix) == ("warning", fix)
    config = check(compose_run([*T5, "launcher=ddp", f'hydra.run.dir="{tmp_path}/run"']), starting=False).config
    assert config.precision.name == ("bf16" if capability == (8, 0) else "fp32")


def test_several_machines_are_for_the_estimate_only(tmp_path: Path) -> None:
    assert "estimate" in one(found(tmp_path, "launcher.num_nodes=2"), "launcher.num_nodes").fix


def test_deepspeed_that_is_not_installed(tmp_path: Path, monkeypatch) -> None:
    """Refused before launch; files can be rendered; DDP does not care."""
    monkeypatch.setattr(deepspeed_software, "is_installed", lambda module: module != "deepspeed")
    problem = one(found(tmp_path), "launcher")
    assert problem.severity == "error"
    assert "pip install 'finetune-runner[deepspeed]'" in problem.fix
    assert one(found(tmp_path, starting=False), "launcher").severity == "warning"
    assert not found(tmp_path, "launcher=ddp")


def program(folder: Path, name: str) -> None:
    (folder / name).write_text("#!/bin/sh\nexit 0\n")
    (folder / name).chmod(0o755)


def test_compilers_are_needed_only_where_an_op_is_built(tmp_path: Path, monkeypatch) -> None:
    """The default run compiles nothing; CPU Adam needs g++ and ninja, torch's Adam does not."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not found(tmp_path)
    problem = one(found(tmp_path, "offload=optimizer_cpu"), "offload")
    assert "build cpu_adam, which needs g++ and ninja" in problem.why
    assert problem.fix.startswith("apt install g++ ninja-build")
    assert not found(tmp_path, "offload=optimizer_cpu", "offload.force_cpu_adam=false")
    program(tmp_path, "g++")
    assert "needs ninja" in one(found(tmp_path, "offload=optimizer_cpu"), "offload").why
    program(tmp_path, "ninja")
    assert not found(tmp_path, "offload=optimizer_cpu")


def test_ranks_left_behind_by_an_earlier_runner_are_named() -> None:
    """A process with a host's command line, whose runner has ended; and one whose runner (this process) lives."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    runners = (gone.pid, os.getpid())
    orphan, child = (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "runner.launch.host", str(runner)])
        for runner in runners
    )
    try:
        [problem] = orphaned_processes()
        named = str(problem.value).split()
        assert problem.severity == "warning"
        assert str(orphan.pid) in named
        assert str(child.pid) not in named
        assert problem.fix == f"end them with kill -9 {problem.value}"
    finally:
        for process in (orphan, child):
            process.kill()
            process.wait()
    assert not [problem for problem in orphaned_processes() if str(orphan.pid) in str(problem.value)]


def test_a_primary_configuration_of_the_users_is_said_to_be_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text("train: {epochs: 9}\n")
    monkeypatch.chdir(tmp_path)
    checked = check(compose_run([f'hydra.run.dir="{tmp_path}/run"']))
    assert [problem.line() for problem in checked.notices if str(tmp_path / "conf/config.yaml") in problem.line()]
    assert checked.config.train.epochs != 9


def test_evaluating_untrained_weights_is_said(tmp_path: Path) -> None:
    said = [
        problem.line()
        for problem in check(compose_run(["mode=evaluate", f'hydra.run.dir="{tmp_path}/run"']), starting=False).notices
    ]
    assert any("model.init=random: the weights that are evaluated are untrained" in line for line in said), said


def test_ops_a_run_needs(tmp_path: Path) -> None:
    def needs(*overrides: str) -> list[str]:
        return ops.needed_ops(
            check(compose_run([*overrides, f'hydra.run.dir="{tmp_path}/run"']), starting=False).config
        )

    assert needs() == []
    assert needs("launcher=ddp") == []
    assert needs("offload=optimizer_cpu") == ["cpu_adam"]
    assert needs("offload=optimizer_cpu", "mode=evaluate") == []
    assert needs("zero_stage=3", "offload=nvme", f"offload.nvme_path={tmp_path}") == ["cpu_adam", "async_io"]


def test_another_compiler_builds_in_another_folder(tmp_path: Path, monkeypatch) -> None:
    """Environments do not share a build folder; the same one finds its own again."""
    ops._environment.cache_clear()
    before = ops.extensions_dir(str(tmp_path), "cpu")
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "g++")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    ops._environment.cache_clear()
    after = ops.extensions_dir(str(tmp_path), "cpu")
    ops._environment.cache_clear()
    assert before != after
    assert before.parent == after.parent == tmp_path / "torch_extensions"


@pytest.fixture
def aio(tmp_path: Path, monkeypatch) -> None:
    """A machine with libaio and compilers, as far as the checks look."""
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "libaio.h").touch()
    monkeypatch.setenv("CPATH", str(tmp_path / "include"))
    (tmp_path / "bin").mkdir()
    for name in ("g++", "ninja"):
        program(tmp_path / "bin", name)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")


NVME = ("zero_stage=3", "offload=nvme", "precision=bf16")


def test_nvme_each_with_its_own_reason(aio, tmp_path: Path) -> None:
    """No folder, no such folder, no direct access, no header file: each is named as what it is."""
    assert "needs a folder" in one(found(tmp_path, *NVME), "offload.nvme_path").why
    assert "no such folder" in one(found(tmp_path, *NVME, "offload.nvme_path=/no/such/mount"), "offload.nvme_path").why
    assert "cannot be written to" in one(found(tmp_path, *NVME, "offload.nvme_path=/proc"), "offload.nvme_path").why
    assert (
        "ZeRO 3 only, this is ZeRO 2"
        in one(found(tmp_path, "zero_stage=2", "offload=nvme", f"offload.nvme_path={tmp_path}"), "offload").why
    )
    assert not [
        problem for problem in found(tmp_path, *NVME, f"offload.nvme_path={tmp_path}") if problem.severity == "error"
    ]


def test_nvme_with_too_little_room(aio, tmp_path: Path) -> None:
    """14 bytes a parameter (12 for the optimizer, 2 for the weights) against the free space, here for 10^15 of
    them.
    """
    huge = (
        "model.config.vocab_size=1000000",
        "model.config.hidden_size=100000000",
        "model.config.max_position_embeddings=0",
    )
    problem = one(
        found(tmp_path, *NVME, *huge, f"offload.nvme_path={tmp_path}", "train.save_model=false"), "offload.nvme_path"
    )
    assert "will be swapped" in problem.why
    assert "TiB" in problem.why


def test_nvme_without_libaio(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ops, "_include_folders", lambda: [tmp_path])
    problem = one(found(tmp_path, *NVME, f"offload.nvme_path={tmp_path}"), "offload")
    assert "libaio.h" in problem.why
    assert "libaio-dev" in problem.fix


def test_nvme_keeps_fp32_parameters_as_bf16(aio, tmp_path: Path) -> None:
    assert (
        one(
            found(tmp_path, "zero_stage=3", "offload=nvme", "precision=fp32", f"offload.nvme_path={tmp_path}"),
            "precision",
        ).severity
        == "warning"
    )


def test_a_run_with_its_optimizer_on_nvme_is_said_to_be_past_resuming(aio, tmp_path: Path) -> None:
    problem = one(found(tmp_path, *NVME, f"offload.nvme_path={tmp_path}"), "offload.optimizer")
    assert problem.severity == "warning"
    assert "cannot be resumed" in problem.why


def test_every_run_swaps_into_its_own_folder(tmp_path: Path) -> None:
    """DeepSpeed's paths hold no name of the run."""
    content = {
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/local"},
            "offload_param": {"device": "cpu"},
        }
    }
    first, second = into_own_folder(content, tmp_path / "a"), into_own_folder(content, tmp_path / "b")
    paths = [item["zero_optimization"]["offload_optimizer"]["nvme_path"] for item in (first, second)]
    assert paths[0] != paths[1]
    assert paths[0] == str(swap_folder("/local", tmp_path / "a"))
    assert into_own_folder(first, tmp_path / "a") == first
    assert content["zero_optimization"]["offload_optimizer"]["nvme_path"] == "/local"
