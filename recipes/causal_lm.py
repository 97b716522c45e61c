"""Continue text: a causal language model, scored by loss and perplexity.

Read by `recipe=gpt2_wikitext` (conf/recipe/gpt2_wikitext.yaml), which says how it is run. What a new task
usually changes: `columns`, the options' defaults, and `features`. The loop, launching and timing are elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from runner import metrics, recipe
from runner.data.long_texts import token_ids

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from runner.config.schema import RunConfig


class CausalLanguageModel(recipe.Recipe):
    """Next-token prediction with any decoder that transformers can build.

    The texts of a split are joined to one stream of tokens and cut into blocks: one block is one training row.
    No token is lost but the tail of the split that fills no block.
    """

    class Options(recipe.Options):
        """Keys under `task`."""

        block_size: int = Field(128, ge=2, description="Tokens per block.")
        row_end: str | None = Field(
            None,
            description="Text put after each row; null: a line feed for .txt files, whose lines are read without "
            "theirs, else nothing.",
        )

    auto_class = "AutoModelForCausalLM"
    columns = ("text",)
    may_be_empty = ("text",)
    metrics = ("loss", "perplexity")
    keeps_rows = False

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._rest: list[int] = []  # tokens of earlier rows that have filled no block yet
        self._tokens = 0
        self._joined = 0  # rows that run into the next one without a mark or a blank between

    def max_positions(self) -> dict[str, int]:
        """A block is what the model sees at a time."""
        return {"block_size": self.options.block_size}

    def row_end(self) -> str:
        """What is put after each row of text."""
        if self.options.row_end is not None:
            return str(self.options.row_end).replace("\\n", "\n")
        dataset = self.config.dataset
        named = [dataset.train, dataset.validation] if dataset.source == "files" else []
        files = [name for item in named if item for name in ([item] if isinstance(item, str) else item)]
        return "\n" if any(name.lower().endswith(".txt") for name in files) else ""

    def features(self, rows: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
        """Blocks of exactly `block_size` tokens; what is left over waits for the next rows."""
        end, size = self.row_end(), self.options.block_size
        texts = [("" if value is None else str(value)) + end for value in self.values(rows, "text")]
        stream = self._rest
        self._joined += 0 if end else sum(bool(text) and not text[-1].isspace() for text in texts)
        for ids in token_ids(tokenizer, texts):
            stream += ids
            self._tokens += len(ids)
        whole = len(stream) // size * size
        self._rest = stream[whole:]
        return {"input_ids": [stream[start : start + size] for start in range(0, whole, size)]}

    def preparation_notes(self) -> list[str]:
        """How many tokens there were, and how many of them the tail lost."""
        size = self.options.block_size
        joined = (
            f"{self._joined:,} rows run into the next one with nothing between; task.row_end says what to put there"
        )
        return [
            f"{self._tokens:,} tokens make {self._tokens // size:,} blocks of {size}; the last {self._tokens % size} "
            "tokens fill no block and are left out"
        ] + [joined] * bool(self._joined)

    def items(self, features: dict[str, Any]) -> int:
        """Predicted tokens: every one but a block's first."""
        return len(features["input_ids"]) - 1

    def collate(self, features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> recipe.Batch:
        """All blocks have the same length: nothing is padded. The model shifts the labels itself."""
        import torch

        tokens = torch.tensor([row["input_ids"] for row in features])
        return {"input_ids": tokens, "labels": tokens}

    def predict(
        self, model: torch.nn.Module, batch: recipe.Batch, tokenizer: PreTrainedTokenizerBase, synced: bool
    ) -> list[Any]:
        """Summed loss and number of predicted tokens of each block; logits are not kept."""
        from torch.nn.functional import cross_entropy

        tokens = batch["input_ids"]
        logits = model(input_ids=tokens).logits
        sums = [
            float(cross_entropy(row[:-1].float(), own[1:], reduction="sum"))
            for row, own in zip(logits, tokens, strict=True)
        ]
        return [[total, tokens.shape[1] - 1] for total in sums]

    def samples(self, predictions: list[Any]) -> list[Any]:
        """Mean loss and predicted tokens of each block."""
        return [{"loss": total / count, "tokens": count} for total, count in predictions]

    def score(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        """Loss per token and perplexity of the whole split."""
        return metrics.perplexity([total for total, _ in predictions], [count for _, count in predictions])
