"""Metrics through `evaluate`, from installed code only: `evaluate.load` would fetch each metric's script.

Each is a subclass of `evaluate.Metric` whose numbers come from scikit-learn or sacrebleu.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from runner.compat.lazy_import import imported_when_called

LIBRARIES = {
    "accuracy": "scikit-learn",
    "f1": "scikit-learn",
    "bleu": "sacrebleu",
    "loss": "torch",
    "perplexity": "torch",
}
LARGEST_EXPONENT = 709.0  # exp of more is no finite float64


def _without_statistics() -> AbstractContextManager[None]:
    """Import `evaluate` inside: only its evaluators use SciPy's statistics (half a second, 50 MB)."""
    return imported_when_called("scipy.stats", "bootstrap")


@lru_cache(maxsize=1)
def _classification_metric() -> Any:
    import datasets
    from sklearn.metrics import accuracy_score, f1_score

    with _without_statistics():
        import evaluate

    class Classification(evaluate.Metric):
        """Accuracy and F1 as GLUE's MRPC defines them: F1 of class 1 for two classes, macro F1 for more."""

        def _info(self) -> evaluate.MetricInfo:
            features = datasets.Features(
                {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
            )
            return evaluate.MetricInfo(
                description="accuracy and F1", citation="", inputs_description="", features=features
            )

        def _compute(self, predictions: list[int], references: list[int], average: str = "binary") -> dict[str, float]:
            return {
                "accuracy": float(accuracy_score(references, predictions)),
                "f1": float(f1_score(references, predictions, average=average, zero_division=0.0)),
            }

    return Classification(keep_in_memory=True)


def classification(predictions: list[int], references: list[int], num_labels: int) -> dict[str, float]:
    """Accuracy and F1 in 0..1.

    Args:
        predictions: class id per row.
        references: class id per row.
        num_labels: with 2, F1 is that of class 1 (as in GLUE); with more, the unweighted mean over classes.
    """
    average = "binary" if num_labels == 2 else "macro"
    scores: dict[str, float] = _classification_metric().compute(
        predictions=predictions, references=references, average=average
    )
    return scores


@lru_cache(maxsize=1)
def _bleu_metric() -> Any:
    import datasets
    import sacrebleu

    with _without_statistics():
        import evaluate

    class CorpusBleu(evaluate.Metric):
        """Corpus BLEU with sacrebleu's defaults: 13a tokenisation, mixed case, exponential smoothing, one reference."""

        def _info(self) -> evaluate.MetricInfo:
            features = datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            )
            return evaluate.MetricInfo(description="corpus BLEU", citation="", inputs_description="", features=features)

        def _compute(self, predictions: list[str], references: list[str]) -> dict[str, float]:
            return {"bleu": float(sacrebleu.corpus_bleu(predictions, [references]).score)}

    return CorpusBleu(keep_in_memory=True)


def corpus_bleu(predictions: list[str], references: list[str]) -> dict[str, float]:
    """Corpus BLEU in 0..100 over detokenised texts, and how many texts are empty where some are.

    Args:
        predictions: one text per row.
        references: one text per row; where all are empty there is nothing to compare with: no `bleu`.
    """
    empty = {
        "empty_predictions": float(sum(not text.strip() for text in predictions)),
        "empty_references": float(sum(not text.strip() for text in references)),
    }
    counted = {name: count for name, count in empty.items() if count}
    if empty["empty_references"] == len(references):
        return counted
    scores: dict[str, float] = _bleu_metric().compute(predictions=predictions, references=references)
    return {**scores, **counted}


def import_libraries(names: Iterable[str]) -> None:
    """Import what these metrics need (0.4 s and more), so that no evaluation's time has it in it.

    Names of a user's own mean nothing here.
    """
    for name, build in {
        "f1": _classification_metric,
        "accuracy": _classification_metric,
        "bleu": _bleu_metric,
        "perplexity": _perplexity_metric,
    }.items():
        if name in names:
            build()


@lru_cache(maxsize=1)
def _perplexity_metric() -> Any:
    import datasets

    with _without_statistics():
        import evaluate

    class Perplexity(evaluate.Metric):
        """Mean loss per token, and its exponential. `predictions` are summed losses, `references` token counts."""

        def _info(self) -> evaluate.MetricInfo:
            features = datasets.Features(
                {"predictions": datasets.Value("float64"), "references": datasets.Value("int64")}
            )
            return evaluate.MetricInfo(description="perplexity", citation="", inputs_description="", features=features)

        def _compute(self, predictions: list[float], references: list[int]) -> dict[str, float]:
            loss = math.fsum(predictions) / sum(references)
            return {"loss": loss, "perplexity": math.exp(loss) if loss < LARGEST_EXPONENT else math.inf}

    return Perplexity(keep_in_memory=True)


def perplexity(loss_sums: list[float], tokens: list[int]) -> dict[str, float]:
    """Loss per token (natural logarithm) and perplexity, each token weighted alike.

    Args:
        loss_sums: summed cross-entropy of each row's predicted tokens.
        tokens: predicted tokens of each row.
    """
    scores: dict[str, float] = _perplexity_metric().compute(predictions=loss_sums, references=tokens)
    return scores


def versions(names: list[str]) -> dict[str, str]:
    """Library and version behind each metric, for the record."""
    from importlib.metadata import version

    return {name: f"{LIBRARIES[name]} {version(LIBRARIES[name])}" for name in names if name in LIBRARIES}
