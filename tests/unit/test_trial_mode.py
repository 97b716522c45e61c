"""A trial of `fit` is a mode of its own: no value that a user can type reaches it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from runner.config.schema import TrainConfig
from runner.rundir.trial import is_trial, mark_trial


def test_the_order_of_trials_is_no_value_of_train_batching() -> None:
    with pytest.raises(ValidationError, match="'random' or 'similar_length'"):
        TrainConfig.model_validate({"batching": "longest_first"})


def test_a_folder_is_a_trials_only_when_marked(tmp_path: Path) -> None:
    assert not is_trial(tmp_path / "trial_1")
    mark_trial(tmp_path / "trial_1")
    assert is_trial(tmp_path / "trial_1")
    assert not is_trial(tmp_path)
