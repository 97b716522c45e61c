"""A user's own DeepSpeed JSON: what runs is what plan and record say; the default run has 375 optimizer steps and 38 of
warm-up.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from runner.compose import compose_run
from runner.errors import RequestError
from runner.preflight.check import Checked, check
from runner.single_run import plan_lines

ZERO2 = {"zero_optimization": {"stage": 2}}


@pytest.fixture
def taken(tmp_path: Path) -> Any:
    """`taken(content, *overrides)` → the checked run of a file with that content (text as it is)."""

    def check_file(content: Any, *overrides: str) -> Checked:
        file = tmp_path / "ds.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return check(compose_run([f"launcher.config_file={file}", "launcher.device=cpu", *overrides]), starting=False)

    return check_file


@pytest.fixture
def refused(taken: Any) -> Any:
    """`refused(content, *overrides)` → the lines of all errors."""

    def lines(content: Any, *overrides: str) -> list[str]:
        with pytest.raises(RequestError) as error:
            taken(content, *overrides)
        return [problem.line() for problem in error.value.problems if problem.severity == "error"]

    return lines


def optimizer(kind: Any = "AdamW", **params: Any) -> dict[str, Any]:
    return {**ZERO2, "optimizer": {"type": kind, "params": params}}


def scheduler(kind: Any = "WarmupDecayLR", **params: Any) -> dict[str, Any]:
    return {**ZERO2, "scheduler": {"type": kind, "params": params}}


@pytest.mark.parametrize(
    ("content", "overrides", "path", "runs"),
    [
        (optimizer(), ["optimizer.lr=0.1"], "optimizer.params.lr", 0.1),
        (optimizer(), [], "optimizer.params.weight_decay", 0.01),
        ({**ZERO2, "optimizer": {"type": "AdamW"}}, [], "optimizer.params.betas", [0.9, 0.999]),
        (scheduler(), [], "scheduler.params.warmup_num_steps", 38),
        (scheduler(), [], "scheduler.params.total_num_steps", 375),
        (scheduler(warmup_num_steps=7), [], "scheduler.params.warmup_type", "linear"),  # DeepSpeed's own default is log
        (ZERO2, ["zero.reduce_bucket_size=77"], "zero_optimization.reduce_bucket_size", 77),
        (ZERO2, ["zero.overlap_comm=false"], "zero_optimization.overlap_comm", False),
        (ZERO2, ["precision=bf16"], "bf16.enabled", True),
        ({**ZERO2, "bf16": {"enabled": "auto"}, "fp16": {"enabled": False}}, ["precision=bf16"], "bf16.enabled", True),
        ({"zero_optimization": {"stage": 3}}, ["offload=cpu"], "zero_optimization.offload_param.device", "cpu"),
        ({"zero_optimization": {"stage": 3}}, ["offload=cpu"], "zero_optimization.offload_optimizer.device", "cpu"),
        (
            {"zero_optimization": {"stage": 3, "max_live_parameters": 5}},
            [],
            "zero_optimization.stage3_max_live_parameters",
            5,
        ),
        ({}, [], "zero_optimization.stage", 2),
        ({}, ["zero_stage=3"], "zero_optimization.stage", 3),
        ({"zero_optimization": {}}, ["zero_stage=1"], "zero_optimization.stage", 1),
        ({"zero_optimization": {"reduce_bucket_size": 5e8}}, [], "zero_optimization.reduce_bucket_size", 500_000_000),
    ],
)
def test_what_the_file_leaves_open_is_what_the_configuration_says(content, overrides, path, runs, taken):
    node = taken(content, *overrides).own_file
    for name in path.split("."):
        node = node[name]
    assert (node, type(node)) == (runs, type(runs))


@pytest.mark.parametrize(
    ("params", "overrides", "torch_adam", "plan"),
    [
        ({}, [], False, "DeepSpeed FusedAdam, lr"),
        ({"torch_adam": True}, [], True, "torch AdamW, lr"),
        ({}, ["optimizer.fused=true"], True, "torch AdamW, lr"),  # which is the class that has it
        ({}, ["offload=optimizer_cpu"], False, "DeepSpeedCPUAdam (offloaded states), lr"),
        ({}, ["offload=optimizer_cpu", "offload.force_cpu_adam=false"], True, "torch AdamW, lr"),
    ],
)
def test_the_plan_names_the_class_that_runs_on_a_gpu(params, overrides, torch_adam, plan, taken):
    run = taken(optimizer(**params), "launcher.device=cuda", "launcher.num_processes=1", *overrides)
    assert run.own_file["optimizer"]["params"]["torch_adam"] is torch_adam
    assert any(line.startswith(f"optimizer  {plan}") for line in plan_lines(run))


@pytest.mark.parametrize(("device", "recorded"), [("cuda", False), ("cpu", True)])
def test_pinned_memory_is_taken_where_it_matters(device, recorded, taken):
    """On a CPU `offload.pin_memory=false` is refused as an unused key; a file that says so is none."""
    content = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}}}
    assert taken(content, f"launcher.device={device}").config.offload.pin_memory is recorded


def test_two_buffer_counts_are_kept_and_reported(taken):
    """DeepSpeed's own defaults, 4 and 5, stand in many files; the configuration has one number for both."""
    places = {
        f"offload_{part}": {"device": "nvme", "nvme_path": "/fast", "buffer_count": count}
        for part, count in (("optimizer", 4), ("param", 5))
    }
    run = taken({"zero_optimization": {"stage": 3, **places}})
    assert [
        run.own_file["zero_optimization"][f"offload_{part}"]["buffer_count"] for part in ("optimizer", "param")
    ] == [4, 5]
    assert run.config.offload.buffer_count == 4
    reported = (
        "offload_param.buffer_count=5: the record has one offload.buffer_count, and there stands "
        "zero_optimization.offload_optimizer.buffer_count=4"
    )
    assert any(reported in notice.line() for notice in run.notices)


def test_a_block_is_never_added(taken):
    assert not {"optimizer", "scheduler"} & taken(ZERO2).own_file.keys()


def test_fp16_numbers_count_under_fp16_only(taken, refused):
    """The block of Hugging Face's examples, at any precision."""
    content = {**ZERO2, "fp16": {"enabled": "auto", "loss_scale": 0, "hysteresis": 3}}
    assert taken(content).config.precision.hysteresis is None
    assert refused(content, "precision=fp16", "precision.hysteresis=2")[0].startswith(
        "error: precision.hysteresis=2: launcher.config_file says fp16.hysteresis=3"
    )


@pytest.mark.parametrize(
    ("content", "overrides", "key", "recorded"),
    [
        (scheduler("WarmupLR", warmup_num_steps=3), [], "scheduler.name", "constant"),
        (scheduler("WarmupLR", warmup_num_steps=3), [], "scheduler.warmup_steps", 3),
        (scheduler(), [], "scheduler.name", "linear"),
        (scheduler(warmup_max_lr=0.5), [], "optimizer.lr", 0.5),
        (optimizer(fused=False), [], "optimizer.fused", False),
        (optimizer(torch_adam=True), ["offload=optimizer_cpu"], "offload.force_cpu_adam", False),
        ({**ZERO2, "zero_force_ds_cpu_optimizer": False}, ["offload=optimizer_cpu"], "offload.force_cpu_adam", False),
    ],
)
def test_what_the_file_says_stands_in_the_record(content, overrides, key, recorded, taken):
    section, name = key.split(".")
    assert getattr(getattr(taken(content, *overrides).config, section), name) == recorded


@pytest.mark.parametrize(
    ("params", "warning", "plan"),
    [
        (
            {"total_num_steps": 5},
            "total_num_steps=5: the run has 375 optimizer steps, so the learning rate is 0 from step 38 on",
            "38 warm-up steps, to step 5,",
        ),
        (
            {"total_num_steps": 400},
            "total_num_steps=400: the run has 375 optimizer steps, so the learning rate does not fall to 0",
            "38 warm-up steps, to step 400,",
        ),
        (
            {"warmup_type": "log"},
            "warmup_type=log: the warm-up is logarithmic",
            "38 warm-up steps, logarithmic warm-up,",
        ),
        ({"warmup_min_lr": 1e-6}, "warmup_min_lr=1e-06: the learning rate begins", "38 warm-up steps, from 1e-06,"),
    ],
)
def test_a_schedule_that_differs_is_reported(params, warning, plan, taken):
    run = taken(scheduler(**params))
    assert any(warning in notice.line() for notice in run.notices)
    assert any(plan in line for line in plan_lines(run))


@pytest.mark.parametrize(("total", "index"), [(375, 377), (5, 7)])
def test_a_schedule_without_warm_up_is_shifted_as_a_whole(total, index, taken):
    """Rendered behind a warm-up of 2 that is never used: `total` becomes `total + 2`; the rendered file, given again,
    means the same.
    """
    first = taken(scheduler(total_num_steps=total), "scheduler.warmup_steps=0")
    params = first.own_file["scheduler"]["params"]
    assert (params["total_num_steps"], params["warmup_num_steps"], params["last_batch_iteration"]) == (index, 2, 2)
    again = taken(first.own_file)
    assert again.config.scheduler.warmup_steps == 0
    assert again.own_file == first.own_file


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (
            optimizer("Nope"),
            ["optimizer.type=Nope: DeepSpeed has no such optimizer (it has AdamW, Adam, Adagrad, Lamb,"],
        ),
        (optimizer("AdmaW"), ["did you mean AdamW?"]),
        (
            optimizer("Lamb"),
            ["optimizer.type=Lamb: DeepSpeed has it, but plan, memory estimate and record of a run are those of AdamW"],
        ),
        (optimizer(3), ["optimizer.type=3: this must be one of DeepSpeed's optimizers"]),
        (optimizer(None), ["optimizer.type=null"]),
        ({**ZERO2, "optimizer": {}}, ["optimizer.type: this must be one of DeepSpeed's optimizers"]),
        ({**ZERO2, "optimizer": None}, ["optimizer=null: this is a block"]),
        (
            optimizer(learning_rate=1),
            ["optimizer.params.learning_rate: DeepSpeed has no such key", "it has adam_w_mode"],
        ),
        (optimizer(max_grad_norm=1), ["write gradient_clipping"]),
        (optimizer(bias_correction=True), ["bias_correction=True: torch AdamW, which is what runs, does not take it"]),
        (
            optimizer(torch_adam=False, fused=True),
            ["fused=True: DeepSpeed FusedAdam, which is what runs, does not take it"],
        ),
        (optimizer("Adam", adam_w_mode=False), ["this is another optimizer than the AdamW"]),
        (scheduler("Nope"), ["scheduler.type=Nope: DeepSpeed has no such scheduler (it has WarmupDecayLR, WarmupLR,"]),
        (scheduler("warmuplr"), ["did you mean WarmupLR?"]),
        (scheduler("WarmupCosineLR"), ["scheduler.type=WarmupCosineLR: DeepSpeed has it, but"]),
        (scheduler("WarmupLR", total_num_steps=3), ["WarmupLR never ends"]),
        (
            scheduler(warmup_steps=3),
            ["scheduler.params.warmup_steps: DeepSpeed has no such key", "did you mean warmup_num_steps?"],
        ),
        (scheduler(warmup_type="cubic"), ["warmup_type=cubic: DeepSpeed knows linear and log"]),
        (scheduler(last_batch_iteration=5), ["last_batch_iteration=5"]),
        (
            {**optimizer(lr=0.1), **scheduler(warmup_max_lr=0.5)},
            ["warmup_max_lr=0.5: launcher.config_file says optimizer.params.lr=0.1 as well"],
        ),
    ],
)
def test_blocks_that_would_run_something_else_are_refused(content, parts, refused):
    (line,) = refused(content)
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("content", "override", "line"),
    [
        (
            scheduler(),
            "scheduler=constant",
            "scheduler=constant: launcher.config_file says scheduler.type=WarmupDecayLR, which is linear",
        ),
        (
            scheduler(warmup_max_lr=0.5),
            "optimizer.lr=0.1",
            "optimizer.lr=0.1: launcher.config_file says scheduler.params.warmup_max_lr=0.5",
        ),
        (
            {**ZERO2, "bf16": {"enabled": False}, "fp16": {"enabled": "auto"}},
            "precision=bf16",
            "precision=bf16: launcher.config_file means fp32",
        ),
        ({**ZERO2, "bf16": {"enabled": 1}}, "precision=fp32", "bf16.enabled=1: this must be true or false"),
        (
            optimizer(torch_adam=True),
            "offload.force_cpu_adam=true",
            "offload.force_cpu_adam=True: launcher.config_file says optimizer.params.torch_adam=True",
        ),
    ],
)
def test_contradictions_with_what_was_typed(content, override, line, refused):
    more = ["offload=optimizer_cpu"] if override.startswith("offload") else []
    assert line in refused(content, override, *more)[0]


def test_every_value_of_the_wrong_kind_is_named_at_once(refused):
    content = {
        "zero_optimization": {
            "stage": True,
            "overlap_comm": "yes",
            "reduce_bucket_size": 1.5,
            "cpu_offload": True,
            "offload_param": {"device": None},
        },
        "zero_allow_untested_optimizer": "no",
        "train_micro_batch_size_per_gpu": True,
        "amp": {"enabled": True},
        "checkpoint": {"load_universal": True},
        "gradient_clipping": None,
        "flops_profiler": {"enabled": 1},
        "torch_autocast": {"enabled": True},
    }
    named = {line.removeprefix("error: ").partition("=")[0] for line in refused(content)}
    zero = {
        f"zero_optimization.{key}"
        for key in ("stage", "overlap_comm", "reduce_bucket_size", "cpu_offload", "offload_param.device")
    }
    others = {
        "zero_allow_untested_optimizer",
        "train_micro_batch_size_per_gpu",
        "amp",
        "checkpoint.load_universal",
        "gradient_clipping",
    }
    assert named == zero | others | {"flops_profiler.enabled", "torch_autocast.enabled"}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('{"zero_optimization": {"stage": 2, "stage": 3}}', "stage: duplicate key"),
        ({"zero_optimization": None}, "zero_optimization=null: this is a block"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": None}}, "zero_optimization.offload_optimizer=null"),
        ("[" * 100_000, "is no JSON"),
        (
            {
                "zero_optimization": {
                    "stage": 3,
                    **{
                        f"offload_{part}": {"device": "nvme", "nvme_path": f"/{part}"}
                        for part in ("optimizer", "param")
                    },
                }
            },
            "offload_param.nvme_path=/param: launcher.config_file says "
            "zero_optimization.offload_optimizer.nvme_path=/optimizer as well",
        ),
        (
            {"zero_optimization": {"stage": 3, "max_live_parameters": 1, "stage3_max_live_parameters": 2}},
            "max_live_parameters=1: is the same as stage3_max_live_parameters",
        ),
    ],
)
def test_files_that_mean_nothing_or_two_things(content, line, refused):
    assert line in refused(content)[0]


def test_only_regular_files_are_read(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(RequestError, match=r"is no regular file"):
            check(compose_run([f"launcher.config_file={path}"]), starting=False)
