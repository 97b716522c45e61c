"""Rewrite the bundled samples and their tokenizers, byte for byte the same on every machine.

    python -m runner.samples.generate [FOLDER]

Without FOLDER it writes where this file lies. It trains no model and needs no network.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from runner.samples import FOLDER
from runner.samples.make_chats import make_chats
from runner.samples.make_dialogues import make_dialogues
from runner.samples.make_paraphrases import make_paraphrases
from runner.samples.make_preferences import make_preferences
from runner.samples.make_stories import make_stories
from runner.samples.make_tasks import make_tasks
from runner.samples.make_tokenizers import (
    BLENDERBOT_SETTINGS,
    CHAT_SPECIALS,
    DEBERTA_SETTINGS,
    GPT2_SETTINGS,
    LLAMA_SETTINGS,
    build_byte_bpe,
    build_word_level,
    build_wordpiece,
    write_tokenizer,
)

Splits = Mapping[str, Sequence[Mapping[str, object]]]


def write_splits(splits: Splits, folder: Path) -> None:
    """Write one `<split>.jsonl` a split into `folder`, one row a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8", newline="\n")


def column_texts(splits: Splits, *columns: str) -> Iterable[str]:
    """Go through the text columns of the train split."""
    return (str(row[column]) for row in splits["train"] for column in columns)


def generate(folder: Path = FOLDER) -> None:
    """Write all samples and tokenizers below `folder`."""
    paraphrases, dialogues, stories, chats = make_paraphrases(), make_dialogues(), make_stories(), make_chats()
    write_splits(paraphrases, folder / "paraphrases")
    write_splits(dialogues, folder / "dialogues")
    write_splits(stories, folder / "stories")
    write_splits(chats, folder / "chats")
    write_splits(make_preferences(), folder / "preferences")
    for name, splits in make_tasks().items():
        write_splits(splits, folder / name)

    wordpiece = build_wordpiece(column_texts(paraphrases, "sentence1", "sentence2"))
    word_level = build_word_level(column_texts(dialogues, "texts", "labels"))
    byte_bpe = build_byte_bpe(column_texts(stories, "text"))
    turns = [message["content"] for row in chats["train"] for message in row["messages"]]
    tokenizers = folder / "tokenizers"
    write_tokenizer(wordpiece, DEBERTA_SETTINGS, tokenizers / "deberta_tiny")
    write_tokenizer(word_level, BLENDERBOT_SETTINGS, tokenizers / "blenderbot_tiny")
    write_tokenizer(byte_bpe, GPT2_SETTINGS, tokenizers / "gpt2_tiny")
    write_tokenizer(build_byte_bpe(turns, CHAT_SPECIALS), LLAMA_SETTINGS, tokenizers / "llama_tiny")


if __name__ == "__main__":
    generate(*map(Path, sys.argv[1:2]))
