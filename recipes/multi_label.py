"""Give a text any number of labels: micro and macro F1, and the share of rows with all labels right.

Read by `recipe=multi_label` (conf/recipe/multi_label.yaml), which says how it is run. What a new task usually
changes: `columns`, `labels_of`, and `score`. The loop, launching and timing are elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from runner import recipe
from runner.data.encoder_inputs import encoded_pair, padded
from runner.data.labels import LabelMap

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


class MultiLabelClassification(recipe.Recipe):
    """One yes or no for each label, with any encoder that transformers can build."""

    class Options(recipe.Options):
        """Keys under `task`."""

        max_length: int = Field(128, ge=8, description="Longest input in tokens, special tokens included.")
        label_separator: str = Field(
            ";", min_length=1, description="Between the labels of a cell of text; lists (jsonl, parquet) need none."
        )
        threshold: float = Field(0.5, gt=0.0, lt=1.0, description="Probability from which a label is predicted.")

    auto_class = "AutoModelForSequenceClassification"
    columns = ("sentence1", "sentence2", "labels")
    optional_columns = ("sentence2",)
    label_column = "labels"
    label_lists = True
    libraries = ("sklearn.metrics",)
    metrics = ("micro_f1", "macro_f1", "exact_match")

    def max_positions(self) -> dict[str, int]:
        return {"max_length": self.options.max_length}

    def labels_of(self, value: object) -> list[Any]:
        """A list as it is; a cell of text cut at the separator. A row without labels has an empty list, `[]`."""
        if not isinstance(value, str):
            return value if isinstance(value, list) else [value]
        if value.strip() == "[]":
            return []
        return [part.strip() for part in value.split(self.options.label_separator)]

    def label_map(self) -> LabelMap:
        """Label ids by name; the names were read from the training split before the run."""
        return LabelMap(self.config.dataset.label_names or [])

    def model_overrides(self) -> dict[str, Any]:
        return {**self.label_map().in_model(), "problem_type": "multi_label_classification"}

    def features(self, rows: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
        result, known = encoded_pair(self, rows, tokenizer, self.options.max_length), self.label_map()
        reference = [
            None if value is None else sorted({known.id_of(label) for label in self.labels_of(value)})
            for value in self.values(rows, "labels")
        ]
        marks = [set(ids or []) for ids in reference]
        result["labels"] = [[float(index in ids) for index in range(len(known.names))] for ids in marks]
        result["reference"] = reference
        return result

    def collate(self, features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> recipe.Batch:
        import torch

        return {**padded(features, tokenizer), "labels": torch.tensor([row["labels"] for row in features])}

    def loss(self, model: torch.nn.Module, batch: recipe.Batch) -> torch.Tensor:
        """Binary cross-entropy, mean over rows and labels."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return binary_cross_entropy_with_logits(model(**inputs).logits.float(), batch["labels"])

    def predict(
        self, model: torch.nn.Module, batch: recipe.Batch, tokenizer: PreTrainedTokenizerBase, synced: bool
    ) -> list[Any]:
        """Label ids of each row."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        chosen = model(**inputs).logits.float().sigmoid() >= self.options.threshold
        return [row.nonzero().flatten().tolist() for row in chosen.cpu()]

    def answers(self, model: torch.nn.Module, batch: recipe.Batch) -> list[dict[str, Any]]:
        names, separator = self.label_map().names, self.options.label_separator
        found = []
        for shares in model(**batch).logits.float().sigmoid().tolist():
            chosen = [name for name, share in zip(names, shares, strict=True) if share >= self.options.threshold]
            each = {f"probability_{name}": round(share, 6) for name, share in zip(names, shares, strict=True)}
            found.append({"prediction": separator.join(chosen), **each})
        return found

    def samples(self, predictions: list[Any]) -> list[Any]:
        names = self.label_map().names
        return [[names[index] for index in ids] for ids in predictions]

    def score(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        """scikit-learn's F1 over all decisions and as mean over labels; a row is right when all its labels are."""
        import numpy as np
        from sklearn.metrics import accuracy_score, f1_score

        def marks(rows: list[Any]) -> np.ndarray:
            table = np.zeros((len(rows), len(self.label_map().names)), dtype=np.int64)
            for index, ids in enumerate(rows):
                table[index, ids] = 1
            return table

        true, guessed = marks(references), marks(predictions)
        return {
            "micro_f1": f1_score(true, guessed, average="micro", zero_division=0),
            "macro_f1": f1_score(true, guessed, average="macro", zero_division=0),
            "exact_match": accuracy_score(true, guessed),
        }
