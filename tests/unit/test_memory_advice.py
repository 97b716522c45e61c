"""What is said when memory ran out, and the faults that tests can ask for."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config.schema import RunConfig
from runner.launch.memory_advice import memory_advice, suggestions_for
from runner.train.faults import Fault, parse_faults


def config_of(train: dict[str, Any] | None = None, **launcher: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "train": train or {},
            "launcher": {"num_processes": 2, "device": "cuda", **launcher},
            "precision": {"name": "fp16"},
        }
    )


def test_suggestions_keep_the_global_batch() -> None:
    """12 × 1 × 2 ranks = 24 = 6 × 2 × 2."""
    found = suggestions_for(config_of({"micro_batch_size": 12}), "forward")
    assert found == [
        "train.micro_batch_size=6 train.gradient_accumulation_steps=2",
        "train.gradient_checkpointing=true",
        "zero_stage=3",
    ]


def test_accumulation_follows_from_a_global_batch_that_was_set() -> None:
    assert (
        suggestions_for(config_of({"micro_batch_size": 12, "global_batch_size": 24}), "backward")[0]
        == "train.micro_batch_size=6"
    )


def test_an_odd_micro_batch_is_divided_evenly() -> None:
    """15 rows a rank: 5 × 3 is the largest split of at most half."""
    assert (
        suggestions_for(config_of({"micro_batch_size": 15}), "optimizer")[0]
        == "train.micro_batch_size=5 train.gradient_accumulation_steps=3"
    )


def test_each_phase_has_its_own_way_out() -> None:
    assert suggestions_for(config_of({"eval_micro_batch_size": 64}), "evaluation") == [
        "train.eval_micro_batch_size=32",
        "train.eval_micro_batch_size=8",
        "zero_stage=3",
    ]
    found = suggestions_for(config_of(name="ddp"), "model_load")
    assert found == [
        "launcher=deepspeed zero_stage=2",
        "launcher=deepspeed zero_stage=3",
        "launcher=deepspeed zero_stage=2 offload=optimizer_cpu",
    ]
    assert suggestions_for(config_of({"micro_batch_size": 1}), "forward")[0] == "train.gradient_checkpointing=true"


def test_offload_is_no_way_out_of_full_host_memory() -> None:
    assert not any(
        "offload" in text
        for text in suggestions_for(
            config_of({"micro_batch_size": 1, "gradient_checkpointing": True}, device="cpu"), "forward"
        )
    )


def test_lines() -> None:
    lines = memory_advice(
        config_of({"micro_batch_size": 8}),
        {"rank": 1, "phase": "backward", "device": "cuda:1", "peak_bytes": 23 * 2**30, "capacity_bytes": 24 * 2**30},
    )
    assert lines[0] == "out of memory in backward, rank 1, device cuda:1; peak 23.00 GiB of 24.00 GiB"
    assert "train.micro_batch_size=8" in lines[1]
    assert "precision=fp16" in lines[1]
    assert "zero_stage=2" in lines[1]
    assert (
        lines[2]
        == "try 1      train.micro_batch_size=4 train.gradient_accumulation_steps=2 (the global batch stays 16)"
    )
    assert len(lines) == 5


def test_faults_are_read() -> None:
    assert parse_faults("oom:forward:2, sleep=0.5:data_wait:*:1") == [
        Fault("oom", "forward", 2, None),
        Fault("sleep", "data_wait", None, 1, 0.5),
    ]
    with pytest.raises(ValueError, match="no such fault"):
        parse_faults("melt:forward:2")
