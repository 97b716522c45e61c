"""Metrics through `evaluate`, from installed code only: `evaluate.load` would fetch each metric's script.

Each is a subclass of `evaluate.Metric` whose numbers come from scikit-learn or sacrebleu.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def _classification_metric() -> Any:
    import datasets
    import evaluate
    from sklearn.metrics import accuracy_score, f1_score

    class Classification(evaluate.Metric):
        """Accuracy and F1 as GLUE's MRPC defines them: F1 of class 1 for two classes, macro F1 for more."""

        def _info(self) -> evaluate.MetricInfo:
            features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
            return evaluate.MetricInfo(description="accuracy and F1", citation="", inputs_description="", features=features)

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
    scores: dict[str, float] = _classification_metric().compute(predictions=predictions, references=references, average=average)
    return scores


def versions(names: list[str]) -> dict[str, str]:
    """Library and version behind each metric, for the record."""
    from importlib.metadata import version

    library = {"accuracy": "scikit-learn", "f1": "scikit-learn", "bleu": "sacrebleu"}
    return {name: f"{library[name]} {version(library[name])}" for name in names if name in library}
