"""Best evaluation, early stopping and their refusals: without ranks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from runner.compose import compose_run
from runner.config.schema import RunConfig
from runner.errors import RequestError
from runner.preflight.check import check
from runner.train.best_so_far import BestSoFar

VALUES = [0.50, 0.60, 0.605, 0.61, 0.59, 0.70]


def config_of(greater: bool = True, **train: float) -> RunConfig:
    return RunConfig.model_validate({"recipe": {"greater_is_better": greater}, "train": train})


def seen(config: RunConfig, values: list[float | None]) -> tuple[BestSoFar, list[bool], list[int]]:
    """The state after the values, whether each was the best so far, and `waited` after each."""
    best = BestSoFar()
    better, waited = [], []
    for step, value in enumerate(values, start=1):
        better.append(best.see(config, value, step * 10, step))
        waited.append(best.waited)
    return best, better, waited


def test_every_gain_counts_without_min_delta() -> None:
    best, better, waited = seen(config_of(early_stopping_patience=2), [*VALUES])
    assert better == [True, True, True, True, False, True]
    assert waited == [0, 0, 0, 0, 1, 0]
    assert (best.value, best.step, best.epoch) == (0.70, 60, 6)


def test_small_gains_use_up_patience_but_are_the_best_all_the_same() -> None:
    """0.605 and 0.61 gain less than 0.02 on 0.60; together with 0.59 three evaluations are waited."""
    config = config_of(early_stopping_patience=3, early_stopping_min_delta=0.02)
    best, better, waited = seen(config, VALUES[:5])
    assert better == [True, True, True, True, False]
    assert waited == [0, 0, 1, 2, 3]
    assert (best.value, best.step) == (0.61, 40)
    assert best.ends_training(config)
    assert not best.ends_training(config_of())  # nobody asked for it


def test_of_equals_the_first_is_the_best_and_less_is_better_for_a_loss() -> None:
    best, better, waited = seen(config_of(greater=False), [2.0, 1.5, 1.5, 1.6])
    assert (better, waited, best.step) == ([True, True, False, False], [0, 0, 1, 2], 20)


def test_what_is_not_finite_is_never_the_best_and_is_waited_for() -> None:
    best, better, waited = seen(config_of(greater=False), [math.nan, math.inf, None, 3.0, math.nan])
    assert (better, waited, best.value) == ([False, False, False, True, False], [1, 2, 3, 0, 1], 3.0)


def test_the_state_survives_a_checkpoint() -> None:
    config = config_of(early_stopping_patience=2)
    whole, _, _ = seen(config, [0.5, 0.4, 0.45])
    half, _, _ = seen(config, [0.5, 0.4])
    taken_up = BestSoFar(**vars(half))
    taken_up.see(config, 0.45, 30, 3)
    assert taken_up == whole
    assert taken_up.ends_training(config)
    facts, sentence = taken_up.early_stop(config, 30, 1.5)
    assert facts["waited"] == facts["patience"] == 2
    assert sentence == (
        "training ended early after step 30 (epoch 1.5 of 3): f1 has not become better in 2 evaluations in a row; "
        "its best is 0.5000 at step 10"
    )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["train.early_stopping_min_delta=0.1"], "train.early_stopping_min_delta=0.1: this has no effect: training"),
        (
            ["train.early_stopping_patience=2", "train.evaluate_every_epoch=false"],
            "train.early_stopping_patience=2: this has no effect: there is one evaluation",
        ),
        (
            ["train.load_best_at_end=true", "train.evaluate_every_epoch=false"],
            "train.load_best_at_end=True: this has no effect: there is one evaluation",
        ),
        (["mode=evaluate", "train.evaluate_every_steps=5"], "train.evaluate_every_steps=5: this has no effect"),
        (
            ["train.early_stopping_patience=2", "recipe.metric_for_best=macro"],
            "recipe.metric_for_best=macro: this recipe scores accuracy, f1",
        ),
        (["train.early_stopping_patience=0"], "train.early_stopping_patience=0"),
        (
            ["dataset=mrpc", "dataset.validation=null", "train.early_stopping_patience=2"],
            "train.early_stopping_patience=2: there is no validation split to evaluate",
        ),
    ],
)
def test_what_would_have_no_effect_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        check(compose_run(overrides), starting=False)
    assert any(words in problem.line() for problem in caught.value.problems), str(caught.value)


def test_more_steps_between_evaluations_than_the_run_has_are_said() -> None:
    """64 rows in batches of 32 are 2 steps an epoch, 6 in all."""
    checked = check(compose_run(["dataset.max_train_rows=64", "train.evaluate_every_steps=6"]), starting=False)
    told = [problem.line() for problem in checked.notices if problem.key == "train.evaluate_every_steps"]
    assert told == [
        "warning: train.evaluate_every_steps=6: the run has only 6 optimizer steps and is evaluated after the last "
        "anyway; use train.evaluate_every_steps=1"
    ]


def test_room_for_the_best_checkpoint_is_counted(tmp_path: Path) -> None:
    from runner.memory.model_size import kept_checkpoints

    assert kept_checkpoints(RunConfig()) == 0
    assert kept_checkpoints(config_of(load_best_at_end=True)) == 4  # two newest, the best, the one being written
