"""DeepSpeed files as they are published: zeros, harmless extras, blocks beside ZeRO, and batch numbers by DeepSpeed's
rule.

The embedded default has micro batch 16 and runs on two CPU ranks. The last cases ask the installed DeepSpeed itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.compose import compose_run
from runner.engines.deepspeed.user_json import other_blocks
from runner.errors import Problem, RequestError
from runner.preflight.check import Checked, check

ZERO2 = {"zero_optimization": {"stage": 2}}


@pytest.fixture
def checked(tmp_path: Path) -> Any:
    """`checked(content, *overrides)` → the checked run with that file."""

    def of(content: dict[str, Any], *overrides: str) -> Checked:
        file = tmp_path / "mine.json"
        file.write_text(json.dumps(content))
        return check(compose_run([f"launcher.config_file={file}", "launcher.device=cpu", *overrides]), starting=False)

    return of


@pytest.fixture
def errors(checked: Any) -> Any:
    """`errors(content, *overrides)` → the errors that refuse it."""

    def of(content: dict[str, Any], *overrides: str) -> list[Problem]:
        with pytest.raises(RequestError) as error:
            checked(content, *overrides)
        return [problem for problem in error.value.problems if problem.severity == "error"]

    return of


@pytest.mark.parametrize("prefix", ["stage3_", ""])
def test_zeros_of_zero_3_are_honoured(checked: Any, prefix: str) -> None:
    zeros = {"sub_group_size": 0, f"{prefix}max_live_parameters": 0, f"{prefix}max_reuse_distance": 0}
    run = checked({"zero_optimization": {"stage": 3, **zeros}})
    rendered = run.own_file["zero_optimization"]
    names = ("sub_group_size", "stage3_max_live_parameters", "stage3_max_reuse_distance")
    assert [rendered[name] for name in names] == [0, 0, 0]
    assert (run.config.zero.sub_group_size, run.config.zero.stage3_max_live_parameters) == (0, 0)


def test_what_another_stage_would_read_is_noticed_with_the_file(checked: Any) -> None:
    extras = {"overlap_comm": True, "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8, "sub_group_size": 1e9}
    run = checked({"zero_optimization": {"stage": 0, **extras}, "train_batch_size": "auto"})
    [notice] = [item for item in run.notices if "have no effect" in item.why]
    assert run.config.zero.stage == 0
    assert notice.severity == "notice"
    assert "mine.json" in notice.why
    assert all(name in notice.key for name in extras)


def test_stage_2_keys_are_still_taken(checked: Any) -> None:
    run = checked({"zero_optimization": {"stage": 2, "reduce_bucket_size": 1000, "stage3_prefetch_bucket_size": 7}})
    assert run.config.zero.reduce_bucket_size == 1000
    assert any("stage3_prefetch_bucket_size" in item.key and item.severity == "notice" for item in run.notices)


def test_a_file_that_forbids_gathering_is_overruled_aloud(checked: Any) -> None:
    key = "stage3_gather_16bit_weights_on_model_save"
    run = checked({"zero_optimization": {"stage": 3, key: False}})
    assert run.own_file["zero_optimization"][key] is True
    assert any(key in item.key and "sets it to true" in item.why for item in run.notices)


@pytest.mark.parametrize(
    ("numbers", "overrides", "micro", "steps", "whole"),
    [
        ({"train_batch_size": 8}, [], 4, 1, 8),
        ({"train_batch_size": 8, "gradient_accumulation_steps": 1}, [], 4, 1, 8),
        (
            {"train_batch_size": 12, "gradient_accumulation_steps": 2, "train_micro_batch_size_per_gpu": "auto"},
            [],
            3,
            2,
            12,
        ),
        ({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}, [], 2, 2, 8),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto"}, [], 16, 2, 64),  # the run's own fits
        ({"train_batch_size": 8, "train_micro_batch_size_per_gpu": "auto"}, [], 4, 1, 8),  # it does not
        ({"train_batch_size": 16}, ["train.micro_batch_size=4"], 4, 2, 16),
        ({"train_batch_size": 16}, ["train.gradient_accumulation_steps=2"], 4, 2, 16),
        ({"train_batch_size": 12}, ["launcher.num_processes=3"], 4, 1, 12),
        ({"gradient_accumulation_steps": 4}, [], 16, 4, 128),
    ],
)
def test_two_batch_numbers_give_the_third(
    checked: Any, numbers: dict[str, Any], overrides: list[str], micro: int, steps: int, whole: int
) -> None:
    run = checked({**ZERO2, **numbers}, *overrides)
    train = run.config.train
    assert (train.micro_batch_size, train.gradient_accumulation_steps) == (micro, steps)
    assert run.own_file["train_batch_size"] == whole


@pytest.mark.parametrize(
    ("numbers", "overrides", "fix"),
    [
        ({"train_batch_size": 9}, [], 8),
        (
            {"train_batch_size": 12, "gradient_accumulation_steps": 2, "train_micro_batch_size_per_gpu": 4},
            [],
            16,
        ),
        ({"train_batch_size": 16}, ["train.micro_batch_size=3"], 12),
    ],
)
def test_batch_numbers_that_do_not_fit_are_fixed_in_the_file(
    checked: Any, errors: Any, numbers: dict[str, Any], overrides: list[str], fix: int
) -> None:
    [problem] = errors({**ZERO2, **numbers}, *overrides)
    assert problem.fix == f'write "train_batch_size": {fix} into launcher.config_file'
    assert checked({**ZERO2, **numbers, "train_batch_size": fix}, *overrides).own_file["train_batch_size"] == fix


@pytest.mark.parametrize(
    ("block", "key"),
    [
        ({"flops_profiler": {"enabled": True, "profile_stp": 1}}, "flops_profiler.profile_stp"),
        ({"comms_logger": {"verbos": True}}, "comms_logger.verbos"),
        ({"activation_checkpointing": {"partition_activation": True}}, "activation_checkpointing.partition_activation"),
        ({"autotuning": {"enabled": True}}, "autotuning.enabled"),
        ({"hybrid_engine": {"enabled": True}}, "hybrid_engine.enabled"),
        ({"data_efficiency": {"enabled": True}}, "data_efficiency.enabled"),
        ({"tensor_parallel": {"size": 2}}, "tensor_parallel"),
        ({"tensor_parallel": {"autotp_size": 2}}, "tensor_parallel"),
        ({"sequence_parallel_size": 2}, "sequence_parallel_size"),
        ({"tensorboard": {"enabled": True}}, "tensorboard.enabled"),
        ({"csv_monitor": {"enabled": True, "output_path": "/proc/nowhere"}}, "csv_monitor.output_path"),
    ],
)
def test_blocks_that_would_die_or_do_nothing_are_refused(
    errors: Any, monkeypatch: pytest.MonkeyPatch, block: dict[str, Any], key: str
) -> None:
    monkeypatch.setattr(other_blocks, "is_installed", lambda name: name != "tensorboard")
    monkeypatch.setattr(other_blocks, "library_problems", lambda content: [])
    [problem] = errors({**ZERO2, **block})
    assert problem.key == key
    assert problem.fix


@pytest.mark.parametrize("name", ["activation_checkpointing", "compile", "autotuning"])
def test_blocks_without_effect_are_said(checked: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(other_blocks, "library_problems", lambda content: [])
    content = {
        "activation_checkpointing": {"profile": True},
        "compile": {"deepcompile": True},
        "autotuning": {"fast": True},
    }
    [notice] = [item for item in checked({**ZERO2, name: content[name]}).notices if item.key == name]
    assert "has no effect" in notice.why
    assert "mine.json" in notice.why


def test_the_installed_deepspeed_judges_values_and_names() -> None:
    def keys(content: dict[str, Any]) -> list[str]:
        return [problem.key for problem in other_blocks.library_problems({**ZERO2, **content})]

    wrong = {"compile": {"disable": True, "backend": "x"}, "csv_monitor": {"output_pth": "/tmp"}}
    assert keys({"compile": wrong["compile"]}) == ["compile.disable", "compile.backend"]
    assert keys({"csv_monitor": wrong["csv_monitor"]}) == ["csv_monitor.output_pth"]
    [said] = other_blocks.library_problems({**ZERO2, "checkpoint": {"tag_validation": "Perhaps"}})
    assert "PERHAPS" in said.why
    for odd in (
        {"communication_data_type": "fp8"},
        {"log_level": "loud"},
        {"data_types": {"grad_accum_dtype": "int3"}},
    ):
        assert len(other_blocks.library_problems({**ZERO2, **odd})) == 1, odd
    assert keys({"checkpoint": {"tag_validation": "Warn"}, "flops_profiler": {"enabled": True}}) == []
