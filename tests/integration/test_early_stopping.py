"""Evaluation inside epochs, early stopping and the best weights on real ranks, whole and after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result
from tests.interrupting import LAUNCHERS, SHORT, checkpoint_names, numbers

# 7 steps an epoch.
EARLY = (
    *(item for item in SHORT if not item.startswith(("train.save_model", "dataset.max_validation_rows"))),
    "train.evaluate_every_steps=2",
    "train.early_stopping_patience=2",
    "train.early_stopping_min_delta=0.9",
    "train.load_best_at_end=true",
    "scheduler.warmup_steps=0",
    "optimizer.lr=0.005",
    # The test file is the validation file, all of its rows.
    "dataset.test=paraphrases/validation.jsonl",
    "dataset.max_validation_rows=500",
)


def all_numbers(result: Result) -> dict[str, Any]:
    record = result.record
    validations = [{name: item[name] for name in ("step", "epoch", "metrics")} for item in record["validations"]]
    more = {name: record.get(name) for name in ("early_stopping", "weights", "test", "parameter_checksums")}
    return {**numbers(result), **more, "validations": validations}


@pytest.fixture(scope="module", params=[pytest.param("ddp", marks=[pytest.mark.soak, pytest.mark.variant]), "zero3"])
def whole(request: Any, real_run: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Result]:
    done = real_run(*LAUNCHERS[request.param], *EARLY, run_dir=tmp_path_factory.mktemp(request.param) / "run")
    assert done.returncode == 0, done.text
    return request.param, done


def test_training_ends_when_the_metric_stays(whole: tuple[str, Result]) -> None:
    """No metric in 0..1 gains more than 0.9 on the first, so the second and third evaluation are waited."""
    _, done = whole
    record = done.record
    assert [(item["step"], item["epoch"]) for item in record["validations"]] == [(2, 0.2857), (4, 0.5714), (6, 0.8571)]
    assert record["optimizer_steps"] == 6
    assert (record["early_stopping"]["step"], record["early_stopping"]["waited"]) == (6, 2)
    assert [line["step"] for line in done.steps] == [1, 2, 3, 4, 5, 6]
    assert record["epochs"][0]["metrics"] == record["validations"][-1]["metrics"]
    assert "training ended early after step 6" in done.text
    values = [item["metrics"]["f1"] for item in record["validations"]]
    assert record["best"] == {
        "metric": "f1",
        "value": max(values),
        "step": record["validations"][values.index(max(values))]["step"],
        "epoch": record["validations"][values.index(max(values))]["epoch"],
    }
    assert record["weights"]["step"] == record["best"]["step"]
    assert record["parameter_checksums"][0] == record["parameter_checksums"][1]


def test_the_best_weights_are_tested_and_saved(whole: tuple[str, Result], real_run: Any, tmp_path: Path) -> None:
    """The test file is the validation file: its metrics are those of the best evaluation, not of the last; so are
    those of the saved model."""
    _, done = whole
    best = next(item for item in done.record["validations"] if item["step"] == done.record["best"]["step"])
    assert done.record["test"]["metrics"] == pytest.approx(best["metrics"])
    again = real_run(
        *LAUNCHERS["ddp"],
        "mode=evaluate",
        f"model.path={done.run_dir}/model",
        "model.init=pretrained",
        "model.tokenizer=null",
        "dataset.max_validation_rows=500",
        run_dir=tmp_path / "again",
    )
    assert again.record["metrics"] == pytest.approx(best["metrics"]), again.text


def test_a_resumed_run_stops_at_the_same_step_with_the_same_weights(
    whole: tuple[str, Result], real_run: Any, tmp_path: Path
) -> None:
    """Ended by a fault in step 6, after the first evaluation that was waited for is in a checkpoint."""
    launcher, done = whole
    failed = real_run(
        *LAUNCHERS[launcher],
        *EARLY,
        "checkpoint.every_steps=2",
        run_dir=tmp_path / "run",
        environment={"RUNNER_FAULT": "error:forward:6"},
    )
    assert failed.returncode == 1
    assert "step_00000004_evaluated" in checkpoint_names(tmp_path / "run")
    resumed = real_run.resume(tmp_path / "run")
    assert resumed.returncode == 0, resumed.text
    assert all_numbers(resumed) == all_numbers(done)


@pytest.mark.soak
def test_evaluating_inside_epochs_does_not_change_training(real_run: Any, tmp_path: Path) -> None:
    plain = real_run(*LAUNCHERS["zero2"], *SHORT, run_dir=tmp_path / "plain")
    often = real_run(*LAUNCHERS["zero2"], *SHORT, "train.evaluate_every_steps=1", run_dir=tmp_path / "often")
    assert numbers(often)["steps"] == numbers(plain)["steps"]
    assert len(often.record["validations"]) == 14
