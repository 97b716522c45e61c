"""What recipes on encoders share: a text or a pair of texts as tokens, and tokens as padded tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.data.long_texts import beginning

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner.recipe import Batch, Recipe

PAIR = ("sentence1", "sentence2")


def encoded_pair(
    recipe: Recipe, rows: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase, limit: int
) -> dict[str, list[Any]]:
    """The model's inputs of the recipe's columns `sentence1` and, where the data has it, `sentence2`.

    Args:
        limit: most tokens of a row; a longer pair loses the end of its longer text.
    """
    texts = [recipe.texts(rows, name) for name in PAIR if recipe.column(name) in rows]
    short = [[text and beginning(text, limit) for text in column] for column in texts]
    encoded = tokenizer(*short, truncation=True, max_length=limit)
    return {name: encoded[name] for name in tokenizer.model_input_names if name in encoded}


def padded(features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> Batch:
    """The model's inputs of some rows, padded to the longest."""
    inputs = [{name: row[name] for name in tokenizer.model_input_names if name in row} for row in features]
    return dict(tokenizer.pad(inputs, padding="longest", return_tensors="pt"))
