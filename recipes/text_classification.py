"""Classify a text or a pair of texts: accuracy and F1.

Read by `recipe=deberta_mrpc` and `recipe=text_classification` (conf/recipe/*.yaml), which say how it is run. What a
new task usually changes: `columns`, `features`, and `score`. The loop, launching and timing are elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from runner import metrics, recipe
from runner.data.encoder_inputs import encoded_pair, padded
from runner.data.labels import HIDDEN, LabelMap
from runner.errors import Problem

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


class TextClassification(recipe.Recipe):
    """Sequence classification with any encoder that transformers can build."""

    class Options(recipe.Options):
        """Keys under `task`."""

        max_length: int = Field(
            128,
            ge=8,
            description="Longest input in tokens, special tokens included; longer pairs lose the end of their longer "
            "text.",
        )
        class_weights: Literal["equal", "balanced"] | dict[str, float] = Field(
            "equal",
            description="Weight of a row's loss by class; balanced: rows / (classes × rows of the class) in training; "
            "or a mapping, {NAME: WEIGHT}, 1 for those left out.",
        )
        label_smoothing: float = Field(
            0.0, ge=0.0, lt=1.0, description="Share of the target that is spread over all classes."
        )

    auto_class = "AutoModelForSequenceClassification"
    columns = ("sentence1", "sentence2", "label")
    optional_columns = ("sentence2",)
    label_column = "label"
    metrics = ("accuracy", "f1")

    def max_positions(self) -> dict[str, int]:
        return {"max_length": self.options.max_length}

    def label_map(self) -> LabelMap:
        """Class ids by label; the names were read from the training split before the run."""
        return LabelMap(self.config.dataset.label_names or [])

    def weights(self) -> list[float] | None:
        """Weight of each class by id; None where all are equal."""
        chosen, names = self.options.class_weights, self.label_map().names
        if chosen == "equal":
            return None
        if chosen == "balanced":
            counts = self.config.dataset.label_counts
            return [sum(counts.values()) / (len(names) * max(1, counts[name])) for name in names]
        return [float(chosen.get(name, 1.0)) for name in names]

    def option_problems(self) -> list[Problem]:
        chosen, names = self.options.class_weights, self.label_map().names
        key, dataset = "task.class_weights", self.config.dataset
        if chosen == "balanced" and not dataset.label_counts:
            why = "how many rows each class has is known of local files only"
            return [Problem(key, chosen, why, f"name the weights, for example {key}.{(names or ['NAME'])[0]}=2")]
        given = chosen if isinstance(chosen, dict) else {}
        problems = [
            Problem(f"{key}.{name}", weight, "there is no such class", f"the classes are {', '.join(names)}")
            for name, weight in given.items()
            if name not in names and names
        ]
        low = [(name, weight) for name, weight in given.items() if weight < 0]
        return problems + [Problem(f"{key}.{name}", weight, "a weight is at least 0", "") for name, weight in low]

    def model_overrides(self) -> dict[str, Any]:
        return {**self.label_map().in_model(), "problem_type": "single_label_classification"}

    def features(self, rows: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
        result = encoded_pair(self, rows, tokenizer, self.options.max_length)
        label_map = self.label_map()
        labels = rows.get(self.column("label") or "", [None] * len(result["input_ids"]))
        result["labels"] = [label_map.id_of(label) for label in labels]
        result["reference"] = [None if label == HIDDEN else label for label in result["labels"]]
        return result

    def collate(self, features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> recipe.Batch:
        import torch

        return {**padded(features, tokenizer), "labels": torch.tensor([row["labels"] for row in features])}

    def loss(self, model: torch.nn.Module, batch: recipe.Batch) -> torch.Tensor:
        """Cross-entropy, weighted by class: the sum over rows, divided by their number (not by their weights, which
        would differ between micro batches).
        """
        weights, smoothing = self.weights(), self.options.label_smoothing
        if weights is None and not smoothing:
            return super().loss(model, batch)
        import torch
        from torch.nn.functional import cross_entropy

        inputs = {name: value for name, value in batch.items() if name != "labels"}
        logits, labels = model(**inputs).logits.float(), batch["labels"]
        by_class = torch.tensor(weights, device=logits.device) if weights is not None else None
        total = cross_entropy(logits, labels, by_class, label_smoothing=smoothing, reduction="sum")
        return total / len(labels)

    def predict(
        self, model: torch.nn.Module, batch: recipe.Batch, tokenizer: PreTrainedTokenizerBase, synced: bool
    ) -> list[Any]:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        classes: list[Any] = model(**inputs).logits.argmax(dim=-1).tolist()
        return classes

    def samples(self, predictions: list[Any]) -> list[Any]:
        names = self.label_map().names
        return [names[prediction] for prediction in predictions]

    def confusion(self, predictions: list[Any], references: list[Any]) -> dict[str, Any] | None:
        return metrics.confusion(self.label_map().names, predictions, references)

    def metric_definitions(self) -> dict[str, str]:
        names = self.label_map().names
        return {"f1": f"of class {names[1]!r}" if len(names) == 2 else f"macro average over {len(names)} classes"}

    def score(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        return metrics.classification(predictions, references, num_labels=len(self.label_map().names))
