"""Words and their tags as tokens and labels: the first token of a word carries its tag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100  # label of a token that is neither learned nor scored, as in torch's cross_entropy


def aligned(
    words: list[list[str]], tags: list[list[int] | None], tokenizer: PreTrainedTokenizerBase, limit: int
) -> tuple[dict[str, list[Any]], list[int]]:
    """Tokens of rows of words, and `labels`: a word's tag at its first token, IGNORED at every other token.

    Args:
        tags: ids, one a word; None for a row without tags, whose words have the label 0.
        limit: most tokens of a row; what is behind is cut.

    Returns:
        Features, and of each row the number of words that were cut.
    """
    encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=limit)
    features: dict[str, list[Any]] = {name: encoded[name] for name in tokenizer.model_input_names if name in encoded}
    features["labels"], cut = [], []
    for row, own in enumerate(tags):
        labels, before = [], None
        known = own if own is not None else [0] * len(words[row])
        for word in encoded.word_ids(row):
            labels.append(IGNORED if word is None or word == before else known[word])
            before = word
        features["labels"].append(labels)
        # A word whose letters give no token at all (control characters) has no label either.
        cut.append(len(words[row]) - sum(label != IGNORED for label in labels))
    return features, cut
