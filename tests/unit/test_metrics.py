"""The runner's own scores against the libraries of the field, and against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from runner import metrics


def test_by_hand() -> None:
    # Class 1: 2 true positives, predicted 3 times, true 2 times: F1 = 2 · 2 / (3 + 2).
    assert metrics.classification([1, 0, 1, 1], [1, 0, 0, 1], 2) == {"accuracy": 0.75, "f1": 0.8}
    # Classes 0, 1, 2: F1 = 2/3, 0, 1; their mean is 5/9.
    found = metrics.classification([0, 1, 2], [0, 0, 2], 3)
    assert found["f1"] == pytest.approx(5 / 9)
    assert metrics.perplexity([6.0, 2.0], [3, 1]) == {"loss": 2.0, "perplexity": math.exp(2.0)}


@pytest.mark.parametrize("labels", [2, 3, 7])
@pytest.mark.parametrize("seed", range(20))
def test_as_scikit_learn(labels: int, seed: int) -> None:
    """Random predictions, among them some that never name a class."""
    draw = np.random.default_rng(seed)
    true = draw.integers(labels, size=50).tolist()
    guessed = draw.integers(max(1, labels - seed % 2), size=50).tolist()
    average = "binary" if labels == 2 else "macro"
    expected = f1_score(true, guessed, average=average, zero_division=0.0)
    assert metrics.classification(guessed, true, labels) == pytest.approx(
        {"accuracy": accuracy_score(true, guessed), "f1": expected}, abs=1e-15
    )


def test_a_class_that_occurs_nowhere_scores_nothing() -> None:
    assert metrics.classification([0, 0], [0, 0], 2) == {"accuracy": 1.0, "f1": 0.0}
    assert f1_score([0, 0], [0, 0], zero_division=0.0) == 0.0
