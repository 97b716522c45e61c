"""`runner cache prune`: by age, by size, never what a process is at work on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import filelock
import pytest

from runner.cli import cache
from runner.errors import RequestError
from runner.made_cache import entries

DAY = 86_400
KIB = 1024


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Features of 4, 2 and 1 KiB, used 40, 10 and 0 days ago; ops of 3 KiB, 20 days; a scan of 1 KiB, 50 days."""
    for name, kib, days in (
        ("features/a", 4, 40),
        ("features/b", 2, 10),
        ("features/c", 1, 0),
        ("torch_extensions/env", 3, 20),
    ):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "data").write_bytes(b"x" * kib * KIB)
        _age(tmp_path / name, days)
    (tmp_path / "features/a.lock").touch()
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans/s.json").write_bytes(b"x" * KIB)
    _age(tmp_path / "scans/s.json", 50)
    (tmp_path / "huggingface").mkdir()
    (tmp_path / "huggingface/model").write_bytes(b"x" * 100 * KIB)
    return tmp_path


def _age(path: Path, days: int) -> None:
    os.utime(path, (time.time() - days * DAY - 60,) * 2)


def left(folder: Path) -> set[str]:
    return {str(entry.path.relative_to(folder)) for entry in entries(folder)}


def test_entries_come_oldest_first_with_their_sizes(folder: Path) -> None:
    found = [(entry.path.name, entry.size) for entry in entries(folder)]
    assert found == [("s.json", KIB), ("a", 4 * KIB), ("env", 3 * KIB), ("b", 2 * KIB), ("c", KIB)]


def test_by_age(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.main(["prune", "older_than=30d", f"cache_dir={folder}"]) == 0
    assert left(folder) == {"features/b", "features/c", "torch_extensions/env"}
    assert not (folder / "features/a.lock").exists()
    assert "5.0 KiB freed" in capsys.readouterr().out


def test_by_size_the_oldest_go_first_and_the_hub_is_left(folder: Path) -> None:
    """11 KiB in all: without the scan 10, without a 6, without the ops 3."""
    assert cache.main(["prune", "max_size=3KiB", f"cache_dir={folder}"]) == 0
    assert left(folder) == {"features/b", "features/c"}
    assert (folder / "huggingface/model").exists()


def test_what_is_in_use_is_left_and_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with filelock.FileLock(folder / "features/a.lock"), filelock.FileLock(folder / "torch_extensions/env/.building"):
        _age(folder / "torch_extensions/env", 20)  # the lock's file is new in it
        assert cache.main(["prune", "older_than=12h", f"cache_dir={folder}"]) == 0
    assert left(folder) == {"features/a", "features/c", "torch_extensions/env"}
    assert capsys.readouterr().out.count("left (in use)") == 2


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["prune"], "prune: cache prune needs older_than or max_size"),
        (["max_size=3KiB"], "max_size=3KiB: cache prune needs"),
        (["prune", "older_than=3 weeks"], "older_than=3 weeks: this is no time"),
        (["prune", "max_size=lots"], "max_size=lots: 'lots' is no amount of memory"),
        (["prune", "clean"], "prune clean: cache knows"),
    ],
)
def test_wrong_requests(typed: list[str], words: str, folder: Path) -> None:
    with pytest.raises(RequestError) as refused:
        cache.main([*typed, f"cache_dir={folder}"])
    assert words in str(refused.value)
    assert len(left(folder)) == 5
