"""Findings that make a score mean little; the numbers are counted by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from runner import metrics
from runner.train.honesty import class_facts, loss_warning, overlap_warnings, score_warnings, unknown_share

NAMES = ("unique", "duplicate")


class Classes:
    """A recipe's part of it: two classes, accuracy and F1 of class 1."""

    label_column = "label"
    label_lists = False

    def samples(self, predictions: list[int]) -> list[str]:
        return [NAMES[label] for label in predictions]

    def score(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        return metrics.classification(predictions, references, num_labels=2)


def facts(predictions: list[int], references: list[int]) -> dict[str, Any]:
    found = class_facts(Classes(), predictions, references)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_the_majority_baseline_of_mrpc_like_rows() -> None:
    """7 of 10 rows are duplicates: always yes has accuracy 0.7 and F1 = 2·0.7·1 / 1.7 = 14/17."""
    found = facts([1] * 10, [1] * 7 + [0] * 3)
    assert found["majority_class"] == "duplicate"
    assert found["majority_baseline"] == pytest.approx({"accuracy": 0.7, "f1": 14 / 17})
    assert found["predicted"] == {"duplicate": 10}
    assert found["references"] == {"unique": 3, "duplicate": 7}
    constant, behind = score_warnings("validation", found, {"accuracy": 0.7, "f1": 14 / 17}, "f1")
    assert constant == "validation: all 10 predictions are 'duplicate' (7 of 10 rows are of that class)"
    assert "no better than always predicting 'duplicate'" in behind
    assert "f1 0.8235 (baseline 0.8235)" in behind


def test_a_predictor_that_learned_something_is_not_warned_of() -> None:
    found = facts([1, 1, 0, 0], [1, 1, 0, 1])
    assert score_warnings("validation", found, {"accuracy": 0.75, "f1": 0.8}, "accuracy") == [
        "validation: the score is no better than always predicting 'duplicate': accuracy 0.7500 (baseline 0.7500)"
    ]
    better = facts([1, 1, 0, 0, 0], [1, 1, 0, 0, 1])
    assert score_warnings("validation", better, {"accuracy": 0.8, "f1": 0.8}, "accuracy") == []


def test_recipes_without_classes_have_no_baseline() -> None:
    assert class_facts(SimpleNamespace(label_column=None), ["a"], ["b"]) is None  # type: ignore[arg-type]
    assert score_warnings("validation", None, {"bleu": 0.0}, "bleu") == []


def test_a_loss_that_did_not_fall() -> None:
    def epochs(*losses: float | None) -> list[dict[str, Any]]:
        return [{"train_loss": loss} for loss in losses]

    assert loss_warning(epochs(0.7, 0.6, 0.71)) == [
        "train: the loss did not fall: 0.7000 in the first epoch, 0.7100 in the last"
    ]
    assert loss_warning(epochs(0.7, 0.6)) == loss_warning(epochs(0.7)) == loss_warning(epochs(None, None)) == []


def split(*rows: list[int]) -> Any:
    table = pa.table({"input_ids": list(rows)})
    return type("Split", (), {"table": table, "__len__": lambda self: len(rows)})()


def test_validation_rows_that_stand_in_train() -> None:
    train = split([1, 2], [3], [4, 5])
    assert overlap_warnings(train, {"validation": split([3], [9], [4, 5], [4])}) == [
        "validation: 2 of 4 rows (50.0 %) have the same input as a row of train"
    ]
    assert overlap_warnings(train, {"validation": split([3, 1], [2])}) == []
    assert overlap_warnings(None, {"validation": split([3])}) == []


def test_the_share_of_unknown_tokens() -> None:
    assert unknown_share(split([1, 0, 0], [0]), 0) == 0.75
    assert unknown_share(split([1, 0]), None) == 0.0
