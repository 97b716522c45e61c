"""Rendered files: complete, numbers as numbers, and what DeepSpeed makes of the schedule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from runner import render
from runner.compose import compose_run
from runner.config import plan
from runner.config.resolve import resolve_machine
from runner.config.schema import RunConfig
from runner.engines.deepspeed.json_file import deepspeed_config
from tests.conftest import ROOT


def config(**launcher):
    made = RunConfig()
    made.launcher.num_processes, made.launcher.device, made.launcher.omp_num_threads = 2, "cpu", 1
    made.precision.name, made.optimizer.owner, made.scheduler.owner = "fp32", "deepspeed", "deepspeed"
    for key, value in launcher.items():
        setattr(made.launcher, key, value)
    return made


def test_no_auto_and_plain_numbers():
    made = config()
    made.optimizer.lr = 1e-5
    rendered = render.render(made, Path("/runs/a"), 100)
    for name, text in rendered.items():
        if name != "config.yaml":  # fit and sweep keys have words of their own there
            assert "auto" not in text.replace("auto_cast", "")
    assert json.loads(rendered["ds_config.json"])["optimizer"]["params"]["lr"] == 1e-5
    assert yaml.safe_load(rendered["config.yaml"])["optimizer"]["lr"] == 1e-5
    assert yaml.safe_load(rendered["accelerate.yaml"])["num_processes"] == 2


def test_a_cpu_run_sees_no_gpu():
    """accelerate under DeepSpeed takes a GPU wherever torch sees one, whatever it was asked for."""
    assert render.rank_environment(config())["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in render.rank_environment(config(device="cuda"))


def test_the_batch_triple_is_consistent():
    made = config()
    made.train.micro_batch_size, made.train.gradient_accumulation_steps = 5, 3
    rendered = deepspeed_config(made, 100)
    assert (
        rendered["train_batch_size"],
        rendered["train_micro_batch_size_per_gpu"],
        rendered["gradient_accumulation_steps"],
    ) == (30, 5, 3)


@pytest.mark.parametrize(("warmup", "total"), [(0, 7), (2, 7), (3, 50)])
@pytest.mark.parametrize("name", ["linear", "constant"])
def test_deepspeeds_schedule_is_the_runners(warmup, total, name):
    """DeepSpeed's own class, built from the rendered block and started as a rank starts it, step by step."""
    torch = pytest.importorskip("torch")
    schedules = pytest.importorskip("deepspeed.runtime.lr_schedules")
    from runner.engines.deepspeed.rank import start_at_first_index

    made = config()
    made.scheduler.name, made.scheduler.warmup_steps, made.optimizer.lr = name, warmup, 3e-4
    block = deepspeed_config(made, total)["scheduler"]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    schedule = getattr(schedules, block["type"])(optimizer, **block["params"])
    start_at_first_index(schedule)
    for step in range(total):
        assert optimizer.param_groups[0]["lr"] == 3e-4 * plan.learning_rate_factor(step, made.scheduler, total)
        schedule.step()


def test_ddp_has_no_deepspeed_file_and_its_own_precision():
    made = config(name="ddp")
    made.precision.name, made.zero.stage = "bf16", 0
    rendered = render.render(made, Path("/runs/a"), 100)
    assert "ds_config.json" not in rendered
    accelerate = yaml.safe_load(rendered["accelerate.yaml"])
    assert (accelerate["distributed_type"], accelerate["mixed_precision"]) == ("MULTI_GPU", "bf16")


def test_offload_stands_in_the_json():
    made = config(device="cuda")
    made.zero.stage, made.offload.optimizer, made.offload.params = 3, "cpu", "cpu"
    zero = deepspeed_config(made, 10)["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert zero["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert zero["stage3_gather_16bit_weights_on_model_save"] is True
    assert deepspeed_config(made, 10)["optimizer"]["params"]["torch_adam"] is False


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), True),
        (("optimizer.fused=false",), None),
        (("offload=optimizer_cpu",), None),
        (("offload=optimizer_cpu", "offload.force_cpu_adam=false"), True),
    ],
)
def test_the_fused_kernel_is_asked_for_where_torch_steps_on_a_cpu(
    overrides: tuple[str, ...], expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    resolved, problems = resolve_machine(
        compose_run(["launcher.device=cpu", "launcher.num_processes=2", *overrides]).config
    )
    assert not problems
    resolved.optimizer.owner = resolved.scheduler.owner = "deepspeed"
    assert deepspeed_config(resolved, 10)["optimizer"]["params"].get("fused") is expected


def test_paths_with_blanks_survive_the_by_hand_command():
    made = config()
    assert "'/runs/a b, (c)=d/accelerate.yaml'" in render.by_hand_command(made, Path("/runs/a b, (c)=d"))


@pytest.mark.parametrize(
    ("own", "expected"), [({}, "1000"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None), ({"GOMP_SPINCOUNT": "7"}, None)]
)
def test_threads_wait_briefly_unless_the_user_has_said_how(
    own: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    assert render.rank_environment(config()).get("GOMP_SPINCOUNT") == expected
