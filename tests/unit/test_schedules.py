"""The learning rate of each step, by hand and against transformers' functions."""

from __future__ import annotations

import math

import pytest

from runner.config import plan
from runner.config.optimization import SchedulerConfig
from runner.schedules import SCHEDULES


def factors(total: int, **keys) -> list[float]:
    scheduler = SchedulerConfig(**keys)
    return [plan.learning_rate_factor(step, scheduler, total) for step in range(total)]


def test_every_schedule_has_its_option_and_its_value_in_the_schema():
    from runner.config.catalogue import option_files

    allowed = set(SchedulerConfig.model_fields["name"].annotation.__args__)
    assert allowed == set(SCHEDULES) == set(option_files("scheduler"))


@pytest.mark.parametrize(
    ("keys", "total", "expected"),
    [
        # 0.1 + 0.9 · (1 + cos(π k / 4)) / 2
        (
            {"name": "cosine_with_min_lr", "min_lr_ratio": 0.1},
            4,
            [1.0, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2, 0.55, 0.1 + 0.9 * (1 - math.sqrt(0.5)) / 2],
        ),
        # one step of warm-up, then 0.2 + 0.8 · (1 − (k − 1) / 4)²
        (
            {"name": "polynomial", "power": 2.0, "min_lr_ratio": 0.2, "warmup_steps": 1},
            5,
            [0.0, 1.0, 0.2 + 0.8 * 9 / 16, 0.4, 0.25],
        ),
        # √(2 / k) after two steps of warm-up
        (
            {"name": "inverse_sqrt", "warmup_steps": 2},
            9,
            [0.0, 0.5, 1.0, math.sqrt(2 / 3), math.sqrt(0.5), math.sqrt(0.4), math.sqrt(1 / 3), math.sqrt(2 / 7), 0.5],
        ),
        # of ten steps two warm up and the last four decay: 1, 3/4, 1/2, 1/4
        (
            {"name": "wsd", "decay_ratio": 0.4, "warmup_steps": 2},
            10,
            [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25],
        ),
        # 1 − √(k / 4), down to a half
        (
            {"name": "wsd", "decay_ratio": 1.0, "decay_shape": "1-sqrt", "min_lr_ratio": 0.5},
            4,
            [1.0, 0.75, 1 - math.sqrt(0.5) / 2, 1 - math.sqrt(0.75) / 2],
        ),
    ],
)
def test_factors_by_hand(keys, total, expected):
    assert factors(total, **keys) == pytest.approx(expected, abs=1e-12)


def test_a_ratio_of_warm_up_is_rounded_up_and_takes_the_place_of_steps():
    assert factors(10, name="linear", warmup_ratio=0.25, warmup_steps=7)[:5] == pytest.approx(
        [0.0, 1 / 3, 2 / 3, 1.0, 6 / 7]
    )
    assert plan.warmup_steps(SchedulerConfig(warmup_ratio=0.1), 375) == 38
    assert plan.warmup_steps(SchedulerConfig(warmup_ratio=0.0, warmup_steps=7), 375) == 0


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize(
    ("keys", "function", "arguments"),
    [
        ({"name": "linear"}, "get_linear_schedule_with_warmup", {"num_training_steps": 20}),
        ({"name": "constant"}, "get_constant_schedule_with_warmup", {}),
        ({"name": "cosine"}, "get_cosine_schedule_with_warmup", {"num_training_steps": 20}),
        (
            {"name": "cosine_with_min_lr", "min_lr_ratio": 0.1},
            "get_cosine_with_min_lr_schedule_with_warmup",
            {"num_training_steps": 20, "min_lr_rate": 0.1},
        ),
        (
            {"name": "polynomial", "min_lr_ratio": 0.1, "power": 1.5},
            "get_polynomial_decay_schedule_with_warmup",
            {"num_training_steps": 20, "lr_end": 0.01, "power": 1.5},
        ),
        ({"name": "inverse_sqrt"}, "get_inverse_sqrt_schedule", {}),
        *(
            (
                {"name": "wsd", "decay_ratio": 0.25, "decay_shape": shape},
                "get_wsd_schedule",
                {"num_training_steps": 20, "num_decay_steps": 5, "decay_type": shape},
            )
            for shape in ("linear", "cosine", "1-sqrt")
        ),
    ],
)
def test_transformers_has_the_same_learning_rate(keys, function, arguments, warmup):
    import torch
    import transformers

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs = getattr(transformers, function)(optimizer, num_warmup_steps=warmup, **arguments)
    scheduler = SchedulerConfig(warmup_steps=warmup, **keys)
    for step in range(20):
        assert 0.1 * plan.learning_rate_factor(step, scheduler, 20) == pytest.approx(
            optimizer.param_groups[0]["lr"], abs=1e-12
        )
        optimizer.step()
        theirs.step()
