"""What makes a good-looking score mean little: constant predictions, the majority baseline, rows of validation in train.

Each finding is one sentence with counts; they stand in the record's `warnings` and at the end of the run.
"""  # noqa: E501

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from runner.data.prepared import PreparedSplit
from runner.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LARGEST_OVERLAP_SEARCH = 200_000  # rows of train; a search in more would hold up the ranks
FEW_KNOWN = 0.5  # share of unknown tokens above which nothing can be learned from the text


def class_facts(recipe: Recipe, predictions: list[Any], references: list[Any]) -> dict[str, Any] | None:
    """How often each class was predicted and is right, and what always predicting the most frequent class would score.

    Returns:
        `predicted` and `references` (class name → rows), `majority_class`, `majority_baseline` (metric → value); None for
        recipes without classes, and where no row has a reference.
    """  # noqa: E501
    if recipe.label_column is None or recipe.label_lists or not references:
        return None
    right = Counter(references)
    most = max(right, key=lambda label: (right[label], -label if isinstance(label, int) else 0))
    baseline = recipe.score([most] * len(references), references)
    named = {label: str(recipe.samples([label])[0]) for label in {*references, *predictions}}
    return {
        "predicted": {named[label]: count for label, count in sorted(Counter(predictions).items())},
        "references": {named[label]: count for label, count in sorted(right.items())},
        "majority_class": named[most],
        "majority_baseline": {name: float(value) for name, value in baseline.items()},
    }


def score_warnings(split: str, facts: dict[str, Any] | None, metrics: dict[str, float], best: str) -> list[str]:
    """Constant predictions, and a score that is no better than always predicting the most frequent class.

    Args:
        split: the split's name.
        best: the recipe's metric; of two equal findings its numbers are told.
    """
    if facts is None:
        return []
    rows, found = sum(facts["references"].values()), []
    if len(facts["predicted"]) == 1 and rows > 1:
        [name] = facts["predicted"]
        share = facts["references"].get(name, 0)
        found.append(f"{split}: all {rows} predictions are {name!r} ({share} of {rows} rows are of that class)")
    baseline = facts["majority_baseline"]
    behind = [name for name in dict.fromkeys((best, "accuracy")) if metrics.get(name, 2.0) <= baseline.get(name, -1.0)]
    if behind:
        told = ", ".join(f"{name} {metrics[name]:.4f} (baseline {baseline[name]:.4f})" for name in behind)
        always = f"always predicting {facts['majority_class']!r}"
        found.append(f"{split}: the score is no better than {always}: {told}")
    return found


def loss_warning(epochs: list[dict[str, Any]]) -> list[str]:
    """A train loss that did not fall from the first epoch to the last."""
    losses = [entry["train_loss"] for entry in epochs if entry.get("train_loss") is not None]
    if len(losses) < 2 or losses[-1] < losses[0]:
        return []
    return [f"train: the loss did not fall: {losses[0]:.4f} in the first epoch, {losses[-1]:.4f} in the last"]


def overlap_warnings(train: PreparedSplit | None, evaluated: dict[str, PreparedSplit]) -> list[str]:
    """Rows of an evaluated split whose inputs stand in train as well, by their tokens."""
    if train is None or len(train) > LARGEST_OVERLAP_SEARCH:
        return []
    known, found = _inputs(train), []
    for name, split in evaluated.items():
        both = sum(row in known for row in _row_hashes(split))
        if both:
            share = 100 * both / len(split)
            found.append(f"{name}: {both} of {len(split)} rows ({share:.1f} %) have the same input as a row of train")
    return found


def _inputs(split: PreparedSplit) -> set[int]:
    return set(_row_hashes(split))


def _row_hashes(split: PreparedSplit) -> list[int]:
    """A hash of each row's input tokens, block by block."""
    hashes: list[int] = []
    for block in split.table.select(["input_ids"]).to_batches() if "input_ids" in split.table.column_names else []:
        hashes += [hash(tuple(ids)) for ids in block.column(0).to_pylist()]
    return hashes


def unknown_share(split: PreparedSplit, unknown_id: int | None, rows: int = 200) -> float:
    """Share of unknown tokens in the first rows of a split, from 0 to 1."""
    if unknown_id is None or "input_ids" not in split.table.column_names:
        return 0.0
    ids = [token for row in split.table.column("input_ids").slice(0, rows).to_pylist() for token in row]
    return ids.count(unknown_id) / len(ids) if ids else 0.0


def tokenizer_facts(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What the tokenizer is, for the record."""
    return {
        "class": type(tokenizer).__name__,
        "vocabulary": len(tokenizer),
        "fast": bool(getattr(tokenizer, "is_fast", False)),
        "pad_token": tokenizer.pad_token,
    }
