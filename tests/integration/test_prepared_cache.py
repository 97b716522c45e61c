"""Tokenised splits are found again, by whoever asks for them, in whatever order."""

from __future__ import annotations

from pathlib import Path

from runner.compose import compose_run
from runner.data.prepared import cached_split, prepare_split
from runner.preflight.check import check
from runner.train.assets import build_tokenizer


def test_a_tokenizer_that_was_used_finds_what_a_fresh_one_wrote(tmp_path: Path) -> None:
    """A fast tokenizer remembers the truncation of its last call; it must not enter the name of the features."""
    checked = check(
        compose_run([f"cache_dir={tmp_path}", "dataset.max_train_rows=20", f"hydra.run.dir={tmp_path}/run"]),
        starting=False,
    )
    recipe, used, fresh = checked.recipe, build_tokenizer(checked.config), build_tokenizer(checked.config)
    assert cached_split(recipe, used, "train") is None
    written = {split: prepare_split(recipe, used, split) for split in ("train", "validation")}
    for tokenizer in (used, fresh):
        for split in ("validation", "train"):
            found = cached_split(recipe, tokenizer, split)
            assert found is not None
            assert found.fingerprint == written[split].fingerprint
    assert len(list((tmp_path / "features").glob("*/facts.json"))) == 2
