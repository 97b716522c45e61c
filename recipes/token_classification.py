"""Tag the words of a text: entity-level precision, recall and F1 as seqeval defines them, and accuracy over words.

Read by `recipe=token_classification` (conf/recipe/token_classification.yaml), which says how it is run. What a new
task usually changes: `columns` and `score`. The loop, launching and timing are elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from runner import recipe
from runner.config.schema import RunConfig
from runner.data.labels import LabelMap
from runner.data.word_tags import IGNORED, aligned

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


class TokenClassification(recipe.Recipe):
    """A tag for each word, with any encoder that transformers can build; tags as in CoNLL (B-…, I-…, O)."""

    class Options(recipe.Options):
        """Keys under `task`."""

        max_length: int = Field(128, ge=8, description="Longest input in tokens; words behind it are cut.")
        scheme: Literal["lenient", "IOB2", "IOBES", "IOE2", "IOB1"] = Field(
            "lenient",
            description="lenient: entities as conlleval reads them; else seqeval's strict mode: only entities that "
            "are right in this scheme count.",
        )

    auto_class = "AutoModelForTokenClassification"
    columns = ("tokens", "tags")
    may_be_lists = ("tokens",)
    label_column = "tags"
    label_lists = True
    libraries = ("seqeval",)
    metrics = ("f1", "precision", "recall", "accuracy")

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._cut_words = self._cut_rows = 0

    def max_positions(self) -> dict[str, int]:
        return {"max_length": self.options.max_length}

    def label_map(self) -> LabelMap:
        """Tag ids by name; the names were read from the training split before the run."""
        return LabelMap(self.config.dataset.label_names or [])

    def labels_of(self, value: object) -> list[Any]:
        """A list of tags, or a text of tags with blanks between."""
        return words_of(value)

    def row_problem(self, row: dict[str, Any]) -> str | None:
        names = [self.column(name) or name for name in self.columns]
        words, tags = (words_of(row.get(name)) for name in names)
        if names[0] in row and not words:
            return f"column {names[0]!r} holds no words"
        if row.get(names[1]) is not None and len(words) != len(tags):
            return f"column {names[0]!r} holds {len(words)} words, column {names[1]!r} {len(tags)} tags"
        return None

    def model_overrides(self) -> dict[str, Any]:
        return self.label_map().in_model()

    def features(self, rows: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
        known = self.label_map()
        words = [[str(word) for word in words_of(value)] for value in self.values(rows, "tokens")]
        tags = [
            None if value is None else [known.id_of(tag) for tag in words_of(value)]
            for value in self.values(rows, "tags")
        ]
        result, cut = aligned(words, tags, tokenizer, self.options.max_length)
        self._cut_words, self._cut_rows = self._cut_words + sum(cut), self._cut_rows + sum(map(bool, cut))
        result["reference"], result["text"] = tags, [" ".join(row) for row in words]
        return result

    def preparation_notes(self) -> list[str]:
        if not self._cut_words:
            return []
        limit = self.options.max_length
        return [
            f"{self._cut_words:,} words of {self._cut_rows:,} rows were cut (task.max_length={limit}): they are not "
            "learned, and count as not found"
        ]

    def items(self, features: dict[str, Any]) -> int:
        """Tagged words: the loss is their mean."""
        return sum(label != IGNORED for label in features["labels"])

    def collate(self, features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> recipe.Batch:
        import torch

        inputs = [{name: row[name] for name in tokenizer.model_input_names if name in row} for row in features]
        batch = dict(tokenizer.pad(inputs, padding="longest", return_tensors="pt"))
        longest = batch["input_ids"].shape[1]
        labels = [row["labels"] + [IGNORED] * (longest - len(row["labels"])) for row in features]
        return {**batch, "labels": torch.tensor(labels)}

    def predict(
        self, model: torch.nn.Module, batch: recipe.Batch, tokenizer: PreTrainedTokenizerBase, synced: bool
    ) -> list[Any]:
        """Tag ids of each row's words, as far as they were not cut."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        chosen, known = model(**inputs).logits.argmax(dim=-1).cpu(), (batch["labels"] != IGNORED).cpu()
        return [row[at].tolist() for row, at in zip(chosen, known, strict=True)]

    def samples(self, predictions: list[Any]) -> list[Any]:
        names = self.label_map().names
        return [[names[tag] for tag in row] for row in predictions]

    def score(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        """seqeval's scores over entities of all rows; a word that was cut has the prediction O."""
        from seqeval import metrics as seqeval
        from seqeval import scheme

        true = self.samples(references)
        found = [row + ["O"] * (len(own) - len(row)) for row, own in zip(self.samples(predictions), true, strict=True)]
        chosen = self.options.scheme
        strict = {} if chosen == "lenient" else {"mode": "strict", "scheme": getattr(scheme, chosen)}
        return {
            "f1": float(seqeval.f1_score(true, found, zero_division=0, **strict)),
            "precision": float(seqeval.precision_score(true, found, zero_division=0, **strict)),
            "recall": float(seqeval.recall_score(true, found, zero_division=0, **strict)),
            "accuracy": float(seqeval.accuracy_score(true, found)),
        }


def words_of(value: object) -> list[Any]:
    """A list as it is; a text at its blanks; nothing where there is nothing."""
    if value is None:
        return []
    return value.split() if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else [value]
