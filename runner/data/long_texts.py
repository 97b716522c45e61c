"""Texts of megabytes in one row: tokenised in pieces, so that memory is bounded by a piece and not by the row.

A tokenizer keeps offsets, masks and more for every token: some 200 bytes for a byte of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PIECE = 256 * 1024  # characters tokenised at a time
_AROUND = 64  # characters on each side of a seam that are compared
_TRIED = 20  # blanks that are tried as a seam
LONG = (
    4 * 1024
)  # characters from which a text is cut before it is truncated: tokenizers keep all pairs of what overflows


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Token ids of each text, without special tokens: the same ones as of the whole texts at once."""
    if all(len(text) <= PIECE for text in texts):
        return _ids(tokenizer, texts)
    return [[token for piece in _pieces(tokenizer, text) for token in _ids(tokenizer, [piece])[0]] for text in texts]


def beginning(text: str, words: int) -> str:
    """A long text's first words, more of them than the tokens that are kept; a short one is returned as it is.

    A word between blanks is at least one token, so what truncation keeps lies within them.
    """
    if len(text) <= LONG:
        return text
    cut = text.split(maxsplit=words)
    return text[: len(text) - len(cut[-1])] if len(cut) > words else text


def _ids(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    return ids


def _pieces(tokenizer: PreTrainedTokenizerBase, text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > PIECE:
        seam = _seam(tokenizer, text, start + PIECE)
        if seam is None:
            break
        yield text[start : seam[0]]
        start = seam[1]
    yield text[start:]


def _seam(tokenizer: PreTrainedTokenizerBase, text: str, before: int) -> tuple[int, int] | None:
    """End of one piece and start of the next, at a blank where both give the tokens of the whole; None where none is
    found.
    """
    at, tried = before, 0
    while tried < _TRIED and (at := text.rfind(" ", 0, at)) > before - PIECE // 2:
        if text[at - 1].isspace() or text[at + 1].isspace():
            continue
        tried += 1
        left, right = text[at - _AROUND : at], text[at : at + _AROUND]
        whole, first, with_blank, without = _ids(tokenizer, [left + right, left, right, right[1:]])
        if first + with_blank == whole:
            return at, at
        if first + without == whole:
            return at, at + 1
    return None
