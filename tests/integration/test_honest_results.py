"""Runs that end without a mistake of the program and without a result: on real ranks, because ranks must agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SMALL = (
    "dataset.max_train_rows=96",
    "dataset.max_validation_rows=40",
    "train.save_model=false",
    "scheduler.warmup_steps=0",
)


def test_a_loss_that_is_not_finite_at_the_end_is_a_failure(real_run: Any, tmp_path: Path) -> None:
    """G20: at a learning rate of 1e30 the second step's loss is no number; three steps stay below max_nonfinite_steps."""  # noqa: E501
    result = real_run("optimizer.lr=1e30", "train.max_steps=3", *SMALL, run_dir=tmp_path / "run")
    assert (result.returncode, result.record["status"]) == (1, "failed")
    assert "the loss was not finite" in result.record["reason"]
    assert "it began at step 2" in result.record["reason"]


def test_a_constant_predictor_is_named_with_its_baseline(real_run: Any, tmp_path: Path) -> None:
    result = real_run("train.max_steps=1", *SMALL, run_dir=tmp_path / "run")
    record = result.record
    classes = record["epochs"][-1]["classes"]
    assert record["status"] == "completed"
    assert len(classes["predicted"]) == 1
    assert sum(classes["references"].values()) == 40
    assert any("all 40 predictions are" in text for text in record["warnings"])
    assert any("no better than always predicting" in text for text in record["warnings"])
    assert record["metric_definitions"] == {"f1": "of class 'equivalent'"}
    assert record["tokenizer"]["vocabulary"] == 115
