"""Batch arithmetic and the learning rate, by hand."""

from __future__ import annotations

import pytest

from runner.config import plan
from runner.config.optimization import SchedulerConfig
from runner.config.resolve import resolve_machine
from runner.config.schema import RunConfig
from runner.errors import RequestError


def config(**train):
    made = RunConfig()
    made.launcher.num_processes = 2
    for key, value in train.items():
        setattr(made.train, key, value)
    return made


def test_global_batch_and_steps():
    made = config(micro_batch_size=4, gradient_accumulation_steps=3, epochs=2)
    assert plan.global_batch_size(made) == 24
    assert plan.batches_per_epoch(604, made) == 76  # 75 full passes of 8 rows and one of 4
    assert plan.steps_per_epoch(604, made) == 26
    assert plan.total_steps(604, made) == 52
    made.train.max_steps = 50
    assert plan.total_steps(604, made) == 50


def factor(step, name, warmup, total, **keys):
    return plan.learning_rate_factor(step, SchedulerConfig(name=name, warmup_steps=warmup, **keys), total)


@pytest.mark.parametrize(
    ("name", "warmup", "total", "expected"),
    [
        ("linear", 0, 4, [1.0, 0.75, 0.5, 0.25]),
        ("linear", 2, 4, [0.0, 0.5, 1.0, 0.5]),
        ("constant", 2, 4, [0.0, 0.5, 1.0, 1.0]),
        ("cosine", 0, 4, [1.0, 0.8535533905932737, 0.5, 0.14644660940672627]),
    ],
)
def test_learning_rate_factor(name, warmup, total, expected):
    assert [factor(step, name, warmup, total) for step in range(4)] == pytest.approx(expected, abs=1e-15)


def test_accumulation_follows_from_a_global_batch(monkeypatch):
    made = config(global_batch_size=64, micro_batch_size=8)
    resolved, problems = resolve_machine(made)
    assert problems == []
    assert resolved.train.gradient_accumulation_steps == 4


@pytest.mark.parametrize(
    ("launcher", "stage", "offload", "expected"),
    [("ddp", 0, "none", "DDP"), ("deepspeed", 2, "none", "ZeRO-2"), ("deepspeed", 3, "cpu", "ZeRO-3 + CPU offload")],
)
def test_method_names(launcher, stage, offload, expected):
    made = config()
    made.launcher.name, made.zero.stage = launcher, stage
    made.offload.optimizer = made.offload.params = offload
    assert plan.method(made) == expected


def test_request_errors_print_one_line_each():
    from runner.errors import Problem

    error = RequestError([Problem("a.b", 1, "why", "fix"), Problem("c", None, "why")])
    assert str(error).splitlines() == ["error: a.b=1: why; fix", "error: c: why"]
