"""Predict a number for a text or a pair of texts: Pearson, Spearman and the mean squared error.

Read by `recipe=regression` (conf/recipe/regression.yaml), which says how it is run. What a new task usually
changes: `columns`, `features`, and `score`. The loop, launching and timing are elsewhere.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydantic import Field

from runner import recipe
from runner.data.encoder_inputs import encoded_pair, padded

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


class Regression(recipe.Recipe):
    """A score on a scale, as in STS-B, with any encoder that transformers can build."""

    class Options(recipe.Options):
        """Keys under `task`."""

        max_length: int = Field(128, ge=8, description="Longest input in tokens, special tokens included.")

    auto_class = "AutoModelForSequenceClassification"
    columns = ("sentence1", "sentence2", "score")
    optional_columns = ("sentence2",)
    target_columns = ("score",)
    libraries = ("scipy.stats",)
    metrics = ("pearson", "spearman", "mse")

    def max_positions(self) -> dict[str, int]:
        return {"max_length": self.options.max_length}

    def model_overrides(self) -> dict[str, Any]:
        return {"num_labels": 1, "problem_type": "regression"}

    def row_problem(self, row: dict[str, Any]) -> str | None:
        column = self.column("score") or "score"
        value = row.get(column)
        if column not in row or (value is not None and number(value) is not None):
            return None
        return f"column {column!r} holds {value!r} where a finite number is needed"

    def features(self, rows: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
        result = encoded_pair(self, rows, tokenizer, self.options.max_length)
        scores = [None if value is None else number(value) for value in self.values(rows, "score")]
        result["labels"] = [0.0 if score is None else score for score in scores]
        result["reference"] = scores
        return result

    def collate(self, features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> recipe.Batch:
        import torch

        labels = torch.tensor([row["labels"] for row in features], dtype=torch.float32)
        return {**padded(features, tokenizer), "labels": labels}

    def loss(self, model: torch.nn.Module, batch: recipe.Batch) -> torch.Tensor:
        """Mean squared error."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        loss: torch.Tensor = (model(**inputs).logits.float().squeeze(-1) - batch["labels"]).square().mean()
        return loss

    def predict(
        self, model: torch.nn.Module, batch: recipe.Batch, tokenizer: PreTrainedTokenizerBase, synced: bool
    ) -> list[Any]:
        return self._scores(model, batch)

    def _scores(self, model: torch.nn.Module, batch: recipe.Batch) -> list[Any]:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        scores: list[Any] = model(**inputs).logits.float().squeeze(-1).tolist()
        return scores

    def answers(self, model: torch.nn.Module, batch: recipe.Batch) -> list[dict[str, Any]]:
        return [{"prediction": score} for score in self._scores(model, batch)]

    def score(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        """SciPy's correlations; where one side is constant there is none."""
        from scipy.stats import pearsonr, spearmanr

        found = {"mse": math.fsum((a - b) ** 2 for a, b in zip(predictions, references, strict=True)) / len(references)}
        if len(set(predictions)) < 2 or len(set(references)) < 2:
            return found
        pearson, spearman = pearsonr(predictions, references)[0], spearmanr(predictions, references)[0]
        return {"pearson": float(pearson), "spearman": float(spearman), **found}


def number(value: object) -> float | None:
    """A finite number, also one that is written as text; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
