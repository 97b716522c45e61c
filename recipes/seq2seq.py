"""Answer a text with a text: replies in dialogues, scored by corpus BLEU.

Read by `recipe=blenderbot_mudoconv` (conf/recipe/blenderbot_mudoconv.yaml), which says how it is run. What a
new task usually changes: `columns`, the options' defaults, `features`, and `score`. A task whose sources are no
dialogues (translation, summaries) sets `turn_separator` to "". The loop, launching and timing are elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pydantic import Field, ValidationInfo, field_validator

from runner import metrics, recipe
from runner.data.dialogues import CutCounts, Dialogue, DialogueFitter
from runner.generation import GeneratingModel, beams_share_source, task_generation

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from runner.config.schema import RunConfig

IGNORED = -100  # label that the models' loss leaves out


class Seq2Seq(recipe.Recipe):
    """Sequence to sequence with any encoder-decoder that transformers can build."""

    class Options(recipe.Options):
        """Keys under `task`. Lengths are tokens, special tokens included."""

        source_prefix: str = Field("chatbot: ", description="Text before every source; it is never cut.")
        turn_separator: str = Field(
            " </s> <s> ",
            description="What stands between the turns of a source; \\n for one turn a line, empty for a source "
            "without turns.",
        )
        context_line: bool = Field(
            True,
            description="Whether the first of several turns is context (a persona, a scene): it stays where it fits "
            "when old turns are dropped.",
        )
        max_source_length: int = Field(
            128, ge=8, description="Longest source, prefix included; longer dialogues lose their oldest turns."
        )
        max_target_length: int = Field(64, ge=2, description="Longest target in training; longer ones lose their end.")
        num_beams: int = Field(10, ge=1, description="Beams of the search; 1 is greedy.")
        min_length: int = Field(20, ge=0, description="Shortest reply, decoder start token included.")
        max_length: int = Field(
            64, ge=2, validate_default=True, description="Longest reply, decoder start token included."
        )
        no_repeat_ngram_size: int = Field(
            3, ge=0, description="No n-gram of this many tokens occurs twice in a reply; 0: no such rule."
        )
        repetition_penalty: float = Field(
            1.2, gt=0, description="Divides the score of tokens that the reply has already; 1: no penalty."
        )
        early_stopping: bool = Field(
            False,
            description="End a row's search at the first `num_beams` complete replies: faster, and sometimes another "
            "reply.",
        )

        @field_validator("turn_separator")
        @classmethod
        def _line_feed(cls, value: str) -> str:
            return value.replace("\\n", "\n")

        @field_validator("max_length")
        @classmethod
        def _not_below_minimum(cls, value: int, info: ValidationInfo) -> int:
            if value < info.data.get("min_length", 0):
                raise ValueError(f"task.min_length={info.data['min_length']} is larger")
            return value

    auto_class = "AutoModelForSeq2SeqLM"
    columns = ("texts", "labels")
    may_be_empty = ("labels",)
    may_be_lists = ("texts",)  # turns
    metrics = ("bleu",)

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._sources, self._targets = CutCounts(), CutCounts()

    def max_positions(self) -> dict[str, int]:
        """Encoder input, decoder input in training, and the reply as it is generated."""
        return {key: getattr(self.options, key) for key in ("max_source_length", "max_target_length", "max_length")}

    def features(self, rows: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
        """Source and target ids; the source text as the model sees it, and the whole target to score against."""
        options = self.options
        dialogues = [
            Dialogue.of(value, options.turn_separator, options.context_line) for value in self.values(rows, "texts")
        ]
        sources = DialogueFitter(tokenizer, options.source_prefix, options.max_source_length, self._sources).fit(
            dialogues
        )
        references = ["" if value is None else str(value) for value in self.values(rows, "labels")]
        return {
            "input_ids": [ids for _, ids in sources],
            "labels": self._target_ids(references, tokenizer),
            "reference": references,
            "text": [text for text, _ in sources],
        }

    def _target_ids(self, targets: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        """Token ids of the targets; a longer one keeps its last token, which ends the text."""
        limit = self.options.max_target_length
        encoded = tokenizer(text_target=targets, truncation=False, verbose=False)["input_ids"]
        self._targets.rows += len(targets)
        self._targets.rows_cut += sum(len(ids) > limit for ids in encoded)
        self._targets.tokens_cut += sum(max(0, len(ids) - limit) for ids in encoded)
        return [ids if len(ids) <= limit else ids[: limit - 1] + ids[-1:] for ids in encoded]

    def preparation_notes(self) -> list[str]:
        """Which sources and targets were cut, and by how much."""
        notes, targets = self._sources.note(self.options.max_source_length), self._targets
        if targets.rows_cut:
            which = (
                f"{targets.rows_cut:,} of {targets.rows:,} targets were longer than "
                f"{self.options.max_target_length} tokens"
            )
            notes.append(
                f"{which} (on average by {targets.tokens_cut / targets.rows_cut:.1f}) and lost their end in training; "
                "BLEU sees them whole"
            )
        return notes

    def length(self, features: dict[str, Any]) -> int:
        """Tokens of encoder and decoder."""
        return len(features["input_ids"]) + len(features["labels"])

    def items(self, features: dict[str, Any]) -> int:
        """Predicted tokens: the loss is their mean."""
        return len(features["labels"])

    def collate(self, features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> recipe.Batch:
        """Decoder inputs are left out: the model makes them from the labels, with its own start token."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        def padded(rows: list[list[int]], value: int) -> torch.Tensor:
            return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)

        sources = [row["input_ids"] for row in features]
        return {
            "input_ids": padded(sources, tokenizer.pad_token_id),
            "attention_mask": padded([[1] * len(row) for row in sources], 0),
            "labels": padded([row["labels"] for row in features], IGNORED),
        }

    def generation_settings(self) -> dict[str, Any]:
        """The task's keys, whatever the model's folder says; caching, which gradient checkpointing turns off, on."""
        names = (
            "num_beams",
            "min_length",
            "max_length",
            "no_repeat_ngram_size",
            "repetition_penalty",
            "early_stopping",
        )
        settings = {name: getattr(self.options, name) for name in names} | {"do_sample": False, "use_cache": True}
        if settings["num_beams"] == 1:
            del settings["early_stopping"]
        return settings

    def predict(
        self, model: torch.nn.Module, batch: recipe.Batch, tokenizer: PreTrainedTokenizerBase, synced: bool
    ) -> list[Any]:
        """Replies as text. The encoder runs once a batch; its states are shared by the beams."""
        bare = cast(GeneratingModel, getattr(model, "module", model))
        with beams_share_source():
            tokens = bare.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                synced_gpus=synced,
                generation_config=task_generation(bare, self.generation_settings()),
            )
        return [" ".join(text.split()) for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]

    def score(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        """Corpus BLEU of the whole split."""
        return metrics.corpus_bleu(predictions, references)
