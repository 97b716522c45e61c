"""Cutting dialogues, with a tokenizer of one token a word, so that every expected value can be counted by eye."""

from __future__ import annotations

from typing import Any

import pytest

from runner.data.dialogues import CutCounts, Dialogue, DialogueFitter


class Words:
    """One token a word, the separator's two marks included, and an end token `</s>` after every text."""

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[str]]]:
        return {"input_ids": [[*text.split(), "</end>"] for text in texts]}

    def decode(self, ids: list[str], skip_special_tokens: bool = True) -> str:
        return " ".join(token for token in ids if token != "</end>")


SEPARATOR = " | "


def fit(
    texts: list[Any], max_length: int, prefix: str = "bot: ", context_line: bool = True
) -> tuple[list[tuple[str, list[str]]], CutCounts]:
    counts = CutCounts()
    dialogues = [Dialogue.of(text, SEPARATOR, context_line) for text in texts]
    return DialogueFitter(Words(), prefix, max_length, counts).fit(dialogues), counts


def test_what_fits_exactly_is_left_alone() -> None:
    # bot: + persona + | + a b + | + c + end = 8 tokens
    (whole,), counts = fit(["persona | a b | c"], 8)
    assert whole == ("bot: persona | a b | c", ["bot:", "persona", "|", "a", "b", "|", "c", "</end>"])
    assert counts.note(8) == []


def test_the_oldest_turn_goes_first_and_the_context_stays() -> None:
    (cut,), counts = fit(["persona | a b | c | d"], 8)
    assert cut[0] == "bot: persona | c | d"  # 7 tokens; with `a b` it would be 10
    assert (counts.rows_cut, counts.turns_dropped, counts.contexts_dropped, counts.newest_cut, counts.tokens_cut) == (
        1,
        1,
        0,
        0,
        3,
    )


def test_the_context_goes_before_the_newest_turn() -> None:
    (cut,), counts = fit(["a long persona line | x | c d"], 6)
    # with the context: bot: + 4 + | + c d + end = 9; without: bot: x | c d end = 6
    assert cut[0] == "bot: x | c d"
    assert (counts.turns_dropped, counts.contexts_dropped) == (0, 1)


def test_a_newest_turn_too_long_keeps_the_prefix_and_its_end() -> None:
    (cut,), counts = fit(["persona | old | one two three four five"], 5)
    assert cut == ("bot: three four five", ["bot:", "three", "four", "five", "</end>"])
    assert (counts.turns_dropped, counts.contexts_dropped, counts.newest_cut) == (1, 1, 1)
    assert "1 of 1 dialogues were longer than 5 tokens" in counts.note(5)[0]
    assert "in 1 rows the newest turn alone was too long" in counts.note(5)[0]


def test_without_a_context_line_the_first_part_is_a_turn() -> None:
    (cut,), counts = fit(["first | second | third"], 5, context_line=False)
    assert cut[0] == "bot: second | third"
    assert (counts.turns_dropped, counts.contexts_dropped) == (1, 0)


def test_rows_are_cut_apart_from_each_other() -> None:
    """Every number of turns, against the longest form that fits, found by trying all."""
    texts = [SEPARATOR.join(["ctx", *(f"t{index}" for index in range(turns))]) for turns in range(1, 12)]
    fitted, counts = fit(texts, 9)
    for turns, (text, ids) in enumerate(fitted, start=1):
        kept = min(turns, 3)  # bot: ctx end = 3 tokens, and two more for every turn with its separator
        assert text == "bot: " + SEPARATOR.join(["ctx", *(f"t{index}" for index in range(turns - kept, turns))])
        assert len(ids) == 3 + 2 * kept
    assert (counts.rows, counts.rows_cut, counts.turns_dropped) == (11, 8, sum(range(1, 9)))


def test_lists_of_turns_missing_and_single_texts() -> None:
    fitted, _ = fit([["ctx", "hello"], None, "only one"], 20)
    assert [text for text, _ in fitted] == ["bot: ctx | hello", "bot: ", "bot: only one"]
    assert Dialogue.of("a b", "", True) == Dialogue(None, ["a b"], "")


def test_a_prefix_without_room_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"task.source_prefix='a b c d ' has 4 tokens and leaves none of task.max_source_length=5"
    ):
        fit(["one two three"], 5, prefix="a b c d ")
