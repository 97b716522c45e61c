"""The metrics of the shipped recipes, from counts; the libraries of the field are their oracle in the tests.

`evaluate`, scikit-learn, SciPy and datasets cost a rank 1.6 s and 150 MB for an F1 that is a count; corpus BLEU is
sacrebleu's. A user's recipe may score with any library.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from runner import __version__

OWN = ("accuracy", "f1", "loss", "perplexity")
LIBRARIES = {"bleu": "sacrebleu"}
LARGEST_EXPONENT = 709.0  # exp of more is no finite float64


def classification(predictions: list[int], references: list[int], num_labels: int) -> dict[str, float]:
    """Accuracy and F1 in 0..1, as scikit-learn's `accuracy_score` and `f1_score(zero_division=0)` compute them.

    Args:
        predictions: class id per row.
        references: class id per row.
        num_labels: with 2, F1 is that of class 1 (as GLUE defines it for MRPC); with more, the unweighted mean over the
            classes that occur in either list.
    """
    guessed, true = np.asarray(predictions, dtype=np.int64), np.asarray(references, dtype=np.int64)
    classes = [1] if num_labels == 2 else sorted(set(guessed.tolist()) | set(true.tolist()))
    scores = [_f1(guessed == label, true == label) for label in classes]
    return {"accuracy": float(np.mean(guessed == true)), "f1": float(np.mean(scores))}


def _f1(guessed: np.ndarray, true: np.ndarray) -> float:
    """2 TP / (predicted + true) of one class; 0 where it occurs in neither (C. J. van Rijsbergen, 1979)."""
    total = int(guessed.sum()) + int(true.sum())
    return 2.0 * int((guessed & true).sum()) / total if total else 0.0


MOST_CONFUSED = 50  # classes of a confusion matrix


def confusion(names: list[str], predictions: list[int], references: list[int]) -> dict[str, Any] | None:
    """`names`, and `counts[true][predicted]` over rows; None where there are more classes than anyone reads.

    Args:
        predictions, references: class id per row.
    """
    if len(names) > MOST_CONFUSED:
        return None
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(counts, (np.asarray(references, dtype=np.int64), np.asarray(predictions, dtype=np.int64)), 1)
    return {"names": list(names), "counts": counts.tolist()}


def corpus_bleu(predictions: list[str], references: list[str]) -> dict[str, float]:
    """Corpus BLEU in 0..100 over detokenised texts, and how many texts are empty where some are.

    sacrebleu's defaults: 13a tokenisation, mixed case, exponential smoothing, one reference.

    Args:
        predictions: one text per row.
        references: one text per row; where all are empty there is nothing to compare with: no `bleu`.
    """
    import sacrebleu

    empty = {
        "empty_predictions": float(sum(not text.strip() for text in predictions)),
        "empty_references": float(sum(not text.strip() for text in references)),
    }
    counted = {name: count for name, count in empty.items() if count}
    if empty["empty_references"] == len(references):
        return counted
    return {"bleu": float(sacrebleu.corpus_bleu(predictions, [references]).score), **counted}


def perplexity(loss_sums: list[float], tokens: list[int]) -> dict[str, float]:
    """Loss per token (natural logarithm) and perplexity, each token weighted alike.

    Args:
        loss_sums: summed cross-entropy of each row's predicted tokens.
        tokens: predicted tokens of each row.
    """
    loss = math.fsum(loss_sums) / sum(tokens)
    return {"loss": loss, "perplexity": math.exp(loss) if loss < LARGEST_EXPONENT else math.inf}


def import_libraries(names: Iterable[str], modules: Iterable[str] = ()) -> None:
    """Import what these metrics need, and a recipe's own modules, so that no evaluation's time has it in it. Names of a
    user's own mean nothing.
    """
    for module in modules:
        importlib.import_module(module)
    if "bleu" in names:
        corpus_bleu(["a"], ["a"])  # sacrebleu loads its tokenizer at the first use


def versions(names: list[str]) -> dict[str, str]:
    """Library and version behind each metric, for the record."""
    from importlib.metadata import version

    own = {name: f"runner {__version__}" for name in names if name in OWN}
    return own | {name: f"{LIBRARIES[name]} {version(LIBRARIES[name])}" for name in names if name in LIBRARIES}
