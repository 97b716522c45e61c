"""Features on disk: bounded blocks, progress, parts that a later start uses, damage that is noticed and repaired."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from runner.data import features
from runner.data.features import BYTES_AT_A_TIME, DamagedFeatures, FeatureWriter, blocks, open_features
from runner.data.long_texts import PIECE, beginning, token_ids
from runner.data.preparing import Preparing, Progress, locked
from runner.data.recipe_state import set_state, state_of
from runner.launch.preparation_lines import line


class Counts:
    """Stands for a recipe: one feature a row, and a count that goes on from block to block."""

    def __init__(self, config: object = None) -> None:
        self.config, self.options, self.seen = config, None, 0

    def features(self, rows: dict[str, list[Any]], tokenizer: object) -> dict[str, list[Any]]:
        first, self.seen = self.seen, self.seen + len(rows["x"])
        return {"input_ids": [[first + index] * 3 for index in range(len(rows["x"]))]}

    def length(self, row: dict[str, Any]) -> int:
        return len(row["input_ids"])

    def items(self, row: dict[str, Any]) -> int:
        return 1


def rows(count: int) -> list[dict[str, Any]]:
    return [{"x": str(index)} for index in range(count)]


def test_blocks_are_bounded_by_rows_and_by_bytes():
    assert [len(block) for block in blocks(rows(2500))] == [1000, 1000, 500]
    long = [{"x": "a" * (BYTES_AT_A_TIME // 4)}] * 10
    assert [len(block) for block in blocks(long)] == [4, 4, 2]
    assert [len(block) for block in blocks([{"x": "a" * (3 * BYTES_AT_A_TIME)}, {"x": "b"}])] == [1, 1]


def test_a_killed_preparation_is_gone_on_with(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(features, "PART_SECONDS", 0.0)  # a part for every block

    def killed(done: int) -> None:
        if done == 2000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FeatureWriter(tmp_path / "a.partial", Counts(), None).write(iter(rows(2500)), killed)  # type: ignore[arg-type]
    recipe, told = Counts(), []
    writer = FeatureWriter(tmp_path / "a.partial", recipe, None)  # type: ignore[arg-type]
    writer.write(iter(rows(2500)), told.append)
    assert told == [2000, 2500]
    assert recipe.seen == 2500
    writer.finish(tmp_path / "a", ["said"], None)
    found = open_features(tmp_path / "a")
    assert found is not None
    assert [row[0] for row in found.table.column("input_ids").to_pylist()] == list(range(2500))
    assert (len(found.lengths), int(found.lengths.sum()), found.notes) == (2500, 7500, ["said"])
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["facts.json", "features.arrow", "sizes.npz"]
    assert not (tmp_path / "a.partial").exists()


@pytest.mark.parametrize("name", ["done.json", "0_features.arrow", "1_sizes.npz"])
def test_broken_parts_are_made_again(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(features, "PART_SECONDS", 0.0)
    FeatureWriter(tmp_path / "a.partial", Counts(), None).write(iter(rows(1500)), lambda _: None)  # type: ignore[arg-type]
    (tmp_path / "a.partial" / name).write_bytes(b"broken")
    writer = FeatureWriter(tmp_path / "a.partial", Counts(), None)  # type: ignore[arg-type]
    assert writer.rows_read == 0
    writer.write(iter(rows(1500)), lambda _: None)
    writer.finish(tmp_path / "a", [], None)
    found = open_features(tmp_path / "a")
    assert found is not None
    assert found.table.num_rows == 1500


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {"cut": content[: len(content) // 2], "empty": b"", "junk": b"\0junk" * 40, "list": b"[]"}[how]
        )


@pytest.mark.parametrize("name", ["features.arrow", "sizes.npz", "facts.json"])
@pytest.mark.parametrize("how", ["cut", "empty", "junk", "gone", "list"])
def test_damaged_features_are_noticed(name: str, how: str, tmp_path: Path):
    writer = FeatureWriter(tmp_path / "a.partial", Counts(), None)  # type: ignore[arg-type]
    writer.write(iter(rows(50)), lambda _: None)
    writer.finish(tmp_path / "a", [], None)
    damaged(tmp_path / "a" / name, how)
    with pytest.raises(DamagedFeatures):
        open_features(tmp_path / "a")


def test_features_that_were_made_again_say_so(tmp_path: Path):
    writer = FeatureWriter(tmp_path / "a.partial", Counts(), None)  # type: ignore[arg-type]
    writer.write(iter(rows(5)), lambda _: None)
    writer.finish(tmp_path / "a", [], "it was cut")
    found = open_features(tmp_path / "a")
    assert found is not None
    assert found.notes == [f"the prepared data in {tmp_path / 'a'} were damaged (it was cut) and have been made again"]


def test_state_of_recipes():
    recipe = Counts()
    recipe.seen = 7
    state = state_of(recipe)  # type: ignore[arg-type]
    assert state == {"seen": 7}
    other = Counts()
    set_state(other, state)  # type: ignore[arg-type]
    assert other.seen == 7
    recipe.seen = object()  # type: ignore[assignment]
    assert state_of(recipe) is None  # type: ignore[arg-type]


def test_a_long_block_is_no_silence_and_those_who_wait_pass_the_progress_on(tmp_path: Path):
    told: list[Progress] = []
    waited: list[Progress] = []
    place, lock = tmp_path / "a.progress", tmp_path / "a.lock"
    with locked(lock, "train", place, told.append), Preparing("train", 100, place, told.append, 60.0) as preparing:
        preparing.rows(0)
        preparing.rows(40)
        time.sleep(1.3)
        assert json.loads(place.read_text())["done"] == 40
        import threading

        def wait() -> None:
            with locked(lock, "train", place, waited.append):
                pass

        other = threading.Thread(target=wait)
        other.start()
        time.sleep(1.3)
    other.join(10)
    assert (told[-1].split, told[-1].done, told[-1].total) == ("train", 40, 100)
    assert waited[0].done == 40
    assert not place.exists()


def test_a_block_that_never_ends_is_a_silence(tmp_path: Path):
    told: list[Progress] = []
    with Preparing("train", None, tmp_path / "a.progress", told.append, patience=0.0) as preparing:
        preparing.rows(0)
        time.sleep(1.2)
    assert told == []


def test_progress_in_words():
    beat = {"done": 20_000, "of": 300_000, "rate": 1250.0}
    assert line("preparing data: train", beat) == (
        "preparing data: train: 20,000 of 300,000 rows, 1,250 rows/s, 3 min 44 s left"
    )
    assert line("preparing data: train", {"done": 10, "of": None, "rate": 0.0}) == "preparing data: train: 10 rows"


def test_a_text_of_several_pieces_gives_the_tokens_of_the_whole():
    from transformers import AutoTokenizer

    from runner import paths

    text = "A pilot was late at noon , and the old bridge looked fine . " * (PIECE // 40)
    for name in ("gpt2_tiny", "deberta_tiny"):
        tokenizer = AutoTokenizer.from_pretrained(str(paths.samples_dir() / "tokenizers" / name))
        whole = tokenizer([text], add_special_tokens=False, verbose=False)["input_ids"]
        assert token_ids(tokenizer, [text]) == whole


def test_a_long_text_keeps_more_words_than_tokens_are_kept():
    text = "word " * 50_000
    assert beginning(text, 128).split() == ["word"] * 128
    assert beginning("word " * 10, 3) == "word " * 10
