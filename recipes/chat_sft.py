"""Fine-tune a chat model on conversations: loss on the answers, scored by loss, perplexity and token accuracy.

Read by `recipe=chat_sft` (conf/recipe/chat_sft.yaml), which says how it is run. Layouts of conversations are in
runner/data/chat_formats.py, the answers' tokens are found in runner/data/chat_template.py. What a new task
usually changes: the options' defaults and `features`. The loop, launching and timing are elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from runner import metrics, recipe
from runner.data import chat_formats, packing
from runner.data.chat_template import IGNORED, ChatEncoder, Encoded, Learn, with_template

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from runner.config.schema import RunConfig


class ChatFineTuning(recipe.Recipe):
    """Next-token prediction on conversations with any decoder that transformers can build."""

    class Options(recipe.Options):
        """Keys under `task`."""

        format: Literal["auto", "messages", "sharegpt", "alpaca", "prompt_completion"] = Field(
            "auto", description="Layout of the rows; auto: recognised from the columns of each row."
        )
        max_length: int = Field(512, ge=8, description="Longest row in tokens; longer conversations lose their end.")
        learn: Learn = Field(
            "answers",
            description="answers: loss on all assistant turns; last_answer: on the last; each_answer: a row of "
            "its own for every answer; all: on every token.",
        )
        packing: bool = Field(
            False, description="Put several conversations into one row of max_length tokens; none sees another."
        )
        chat_template: str | None = Field(
            None, description="Jinja file, or `plain` for the runner's own; null: the tokenizer's template."
        )
        system_into_user: bool = Field(
            False, description="Put the system prompt into the first user turn, for templates without that role."
        )

    auto_class = "AutoModelForCausalLM"
    columns = chat_formats.COLUMNS
    optional_columns = chat_formats.COLUMNS
    checks_rows = True
    metrics = ("loss", "perplexity", "token_accuracy")
    keeps_rows = False

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._encoder: ChatEncoder | None = None
        self._rows = self._packed = self._conversations = 0

    def max_positions(self) -> dict[str, int]:
        return {"max_length": self.options.max_length}

    def adjust_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        with_template(tokenizer, self.options.chat_template)

    def conversation(self, row: dict[str, Any]) -> chat_formats.Conversation:
        """The conversation in a row of the data set; raises WrongRow."""
        known = {name: row.get(self.column(name) or "") for name in self.columns}
        return chat_formats.read(known, self.options.format, list(row))

    def row_problem(self, row: dict[str, Any]) -> str | None:
        try:
            self.conversation(row)
        except chat_formats.WrongRow as error:
            return str(error)
        return None

    def prompt(self, row: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> str:
        """The conversation up to its last question; an answer behind it is what the model is asked for."""
        return self._encoder_of(tokenizer).prompt(self.conversation(row))

    def _encoder_of(self, tokenizer: PreTrainedTokenizerBase) -> ChatEncoder:
        if self._encoder is None:
            options = self.options
            self._encoder = ChatEncoder(tokenizer, options.learn, options.max_length, options.system_into_user)
        return self._encoder

    def features(self, rows: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
        """Tokens, labels (IGNORED where nothing is learned) and positions; packed rows hold several conversations."""
        options, encoder = self.options, self._encoder_of(tokenizer)
        encoded: list[Encoded] = []
        for values in zip(*rows.values(), strict=True):
            self._rows += 1
            try:
                encoded += encoder.encode(self.conversation(dict(zip(rows, values, strict=True))))
            except chat_formats.WrongRow as error:
                raise ValueError(f"row {self._rows} {error}") from None
        made = packing.packed(encoded, options.max_length) if options.packing else list(map(packing.alone, encoded))
        self._conversations += len(encoded)
        self._packed += len(made)
        return {
            "input_ids": [row.input_ids for row in made],
            "labels": [row.labels for row in made],
            "position_ids": [row.positions for row in made],
        }

    def preparation_notes(self) -> list[str]:
        notes = self._encoder.counts.notes(self.options.max_length) if self._encoder else []
        if self.options.packing:
            notes.append(f"{self._conversations:,} conversations were packed into {self._packed:,} rows")
        return notes

    def items(self, features: dict[str, Any]) -> int:
        """Learned tokens: the loss is their mean."""
        return sum(label != IGNORED for label in features["labels"])

    def collate(self, features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> recipe.Batch:
        """No attention mask: padding comes last and has positions of its own, so no token before it sees it."""
        import torch

        longest = max(len(row["input_ids"]) for row in features)

        def padded(name: str, value: int | None) -> torch.Tensor:
            rest = [longest - len(row[name]) for row in features]
            fillers = [list(range(count)) if value is None else [value] * count for count in rest]
            return torch.tensor([row[name] + filler for row, filler in zip(features, fillers, strict=True)])

        batch = {"input_ids": padded("input_ids", tokenizer.pad_token_id), "labels": padded("labels", IGNORED)}
        return {**batch, "position_ids": padded("position_ids", None)}

    def loss(self, model: torch.nn.Module, batch: recipe.Batch) -> torch.Tensor:
        loss: torch.Tensor = model(**batch, use_cache=False).loss
        return loss  # with a cache transformers would not look for packed rows

    def predict(
        self, model: torch.nn.Module, batch: recipe.Batch, tokenizer: PreTrainedTokenizerBase, synced: bool
    ) -> list[Any]:
        """Summed loss, learned tokens, and how many of them were the likeliest, of each row; logits are not kept."""
        from torch.nn.functional import cross_entropy

        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        logits = model(**inputs, use_cache=False).logits[:, :-1]
        results = []
        for row, labels in zip(logits, batch["labels"][:, 1:], strict=True):
            learned = labels != IGNORED
            scores, wanted = row[learned].float(), labels[learned]
            right = int((scores.argmax(dim=-1) == wanted).sum())
            results.append([float(cross_entropy(scores, wanted, reduction="sum")), int(learned.sum()), right])
        return results

    def samples(self, predictions: list[Any]) -> list[Any]:
        return [{"loss": loss / count, "tokens": count, "right": right} for loss, count, right in predictions]

    def score(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        losses, counts, right = zip(*predictions, strict=True)
        return {**metrics.perplexity(list(losses), list(counts)), "token_accuracy": sum(right) / sum(counts)}
