"""Dialogues cut to a model's length: the oldest turns go first, at turn borders; the newest turn always stays.

What is kept, in this order: the source prefix, the newest turn, the context line (a persona, a scene), then
as many of the turns before the newest as fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Dialogue:
    """One dialogue: an optional context line, then turns, oldest first."""

    context: str | None
    turns: list[str]
    separator: str

    @classmethod
    def of(cls, value: object, separator: str, context_line: bool) -> Dialogue:
        """A dialogue from a data row.

        Args:
            value: the text with its separators, a list of turns, or None.
            context_line: whether the first of several parts is context and not a turn.
        """
        if isinstance(value, list):
            parts = [str(part) for part in value]
        else:
            text = "" if value is None else str(value)
            parts = text.split(separator) if separator else [text]
        parts = parts or [""]
        if context_line and len(parts) > 1:
            return cls(parts[0], parts[1:], separator)
        return cls(None, parts, separator)

    def text(self, prefix: str, dropped: int = 0, with_context: bool = True) -> str:
        """The source text without its `dropped` oldest turns."""
        head = [self.context] if with_context and self.context is not None else []
        return prefix + self.separator.join([*head, *self.turns[dropped:]])


@dataclass
class CutCounts:
    """What cutting did, over all rows so far."""

    rows: int = 0
    rows_cut: int = 0
    turns_dropped: int = 0
    contexts_dropped: int = 0
    newest_cut: int = 0
    tokens_cut: int = 0

    def note(self, max_length: int) -> list[str]:
        """One line for the record; none where every row fitted."""
        if not self.rows_cut:
            return []
        line = (
            f"{self.rows_cut:,} of {self.rows:,} dialogues were longer than {max_length} tokens (on average by "
            f"{self.tokens_cut / self.rows_cut:.1f}) "
            f"and lost their oldest turns: {self.turns_dropped / self.rows_cut:.2f} turns dropped on average"
        )
        if self.contexts_dropped:
            line += f", the context line in {self.contexts_dropped:,} rows"
        if self.newest_cut:
            line += f"; in {self.newest_cut:,} rows the newest turn alone was too long and lost its beginning"
        return [line]


class DialogueFitter:
    """Makes source token ids of at most `max_length` tokens, special tokens and prefix included.

    Args:
        prefix: text before every dialogue.
        max_length: in tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prefix: str, max_length: int, counts: CutCounts) -> None:
        self._tokenizer, self._prefix, self._max_length, self._counts = tokenizer, prefix, max_length, counts

    def fit(self, dialogues: list[Dialogue]) -> list[tuple[str, list[int]]]:
        """Source text and token ids of each dialogue, as the model is to see them.

        Raises:
            ValueError: when the prefix leaves no tokens for a turn.
        """
        texts = [dialogue.text(self._prefix) for dialogue in dialogues]
        fitted = list(zip(texts, self._ids(texts), strict=True))
        long = [index for index, (_, ids) in enumerate(fitted) if len(ids) > self._max_length]
        before = sum(len(fitted[index][1]) for index in long)
        for index, shorter in zip(long, self._shorten([dialogues[index] for index in long]), strict=True):
            fitted[index] = shorter
        self._counts.rows += len(dialogues)
        self._counts.rows_cut += len(long)
        self._counts.tokens_cut += before - sum(len(fitted[index][1]) for index in long)
        return fitted

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        ids: list[list[int]] = self._tokenizer(texts, truncation=False, padding=False, verbose=False)["input_ids"]
        return ids

    def _shorten(self, dialogues: list[Dialogue]) -> list[tuple[str, list[int]]]:
        """For each dialogue the longest form that fits: with its context, else without, else a part
        of its newest turn.
        """
        with_context = self._least_dropped(dialogues, lambda dialogue, dropped: dialogue.text(self._prefix, dropped))
        rest = [dialogue for dialogue, dropped in zip(dialogues, with_context, strict=True) if dropped is None]
        without = iter(
            self._least_dropped(
                rest, lambda dialogue, dropped: dialogue.text(self._prefix, dropped, with_context=False)
            )
        )
        texts, cut = [], []
        for dialogue, dropped in zip(dialogues, with_context, strict=True):
            keeps_context = dropped is not None
            kept = dropped if dropped is not None else next(without)
            cut.append(kept is None)
            oldest = kept if kept is not None else len(dialogue.turns) - 1
            texts.append(dialogue.text(self._prefix, oldest, keeps_context))
            self._counts.turns_dropped += oldest
            self._counts.contexts_dropped += dialogue.context is not None and not keeps_context
            self._counts.newest_cut += kept is None
        return [
            self._end_of(ids) if is_cut else (text, ids)
            for text, ids, is_cut in zip(texts, self._ids(texts), cut, strict=True)
        ]

    def _least_dropped(self, dialogues: list[Dialogue], text: Callable[[Dialogue, int], str]) -> list[int | None]:
        """Fewest oldest turns to drop so that each dialogue fits, by bisection over all rows at once; None where even
        the newest does not.
        """
        low, high = [0] * len(dialogues), [len(dialogue.turns) for dialogue in dialogues]
        while searched := [index for index in range(len(dialogues)) if low[index] < high[index]]:
            middle = {index: (low[index] + high[index]) // 2 for index in searched}
            tokens = self._ids([text(dialogues[index], middle[index]) for index in searched])
            for index, ids in zip(searched, tokens, strict=True):
                if len(ids) <= self._max_length:
                    high[index] = middle[index]
                else:
                    low[index] = middle[index] + 1
        return [
            dropped if dropped < len(dialogue.turns) else None for dropped, dialogue in zip(low, dialogues, strict=True)
        ]

    def _end_of(self, ids: list[int]) -> tuple[str, list[int]]:
        """The prefix and the end of a newest turn that is too long alone."""
        kept = self._prefix_tokens(ids)
        available = self._max_length - kept
        if available < 2:
            raise ValueError(
                f"task.source_prefix={self._prefix!r} has {kept} tokens and leaves none of "
                f"task.max_source_length={self._max_length}"
            )
        shorter = ids[:kept] + ids[len(ids) - available :]
        return str(self._tokenizer.decode(shorter, skip_special_tokens=True)), shorter

    def _prefix_tokens(self, ids: list[int]) -> int:
        """How many tokens at the start belong to the prefix (and a leading special token)."""
        (alone,) = self._ids([self._prefix])
        same = 0
        while same < min(len(alone), len(ids)) and alone[same] == ids[same]:
            same += 1
        return same
