"""Classify a text or a pair of texts: accuracy and F1.

Read by `recipe=deberta_mrpc` (conf/recipe/deberta_mrpc.yaml), which says how it is run. What a new
task usually changes: `columns`, `features`, and `score`. The loop, launching and timing are elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from runner import metrics, recipe
from runner.data.labels import HIDDEN, LabelMap
from runner.data.long_texts import beginning

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

    def model_overrides(self) -> dict[str, Any]:
        names = self.label_map().names
        return {
            "num_labels": len(names),
            "id2label": dict(enumerate(names)),
            "label2id": {name: index for index, name in enumerate(names)},
            "problem_type": "single_label_classification",
        }

    def features(self, rows: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
        texts = [self.texts(rows, name) for name in ("sentence1", "sentence2") if self.column(name) in rows]
        limit = self.options.max_length
        short = [[text and beginning(text, limit) for text in column] for column in texts]
        encoded = tokenizer(*short, truncation=True, max_length=limit)
        result = {name: encoded[name] for name in tokenizer.model_input_names if name in encoded}
        label_map = self.label_map()
        labels = rows.get(self.column("label") or "", [None] * len(result["input_ids"]))
        result["labels"] = [label_map.id_of(label) for label in labels]
        result["reference"] = [None if label == HIDDEN else label for label in result["labels"]]
        return result

    def collate(self, features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> recipe.Batch:
        import torch

        labels = torch.tensor([row["labels"] for row in features])
        inputs = [{name: row[name] for name in tokenizer.model_input_names if name in row} for row in features]
        padded = tokenizer.pad(inputs, padding="longest", return_tensors="pt")
        return {**padded, "labels": labels}

    def predict(
        self, model: torch.nn.Module, batch: recipe.Batch, tokenizer: PreTrainedTokenizerBase, synced: bool
    ) -> list[Any]:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        classes: list[Any] = model(**inputs).logits.argmax(dim=-1).tolist()
        return classes

    def samples(self, predictions: list[Any]) -> list[Any]:
        names = self.label_map().names
        return [names[prediction] for prediction in predictions]

    def metric_definitions(self) -> dict[str, str]:
        names = self.label_map().names
        return {"f1": f"of class {names[1]!r}" if len(names) == 2 else f"macro average over {len(names)} classes"}

    def score(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        return metrics.classification(predictions, references, num_labels=len(self.label_map().names))
