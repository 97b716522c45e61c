"""What the runner and its engines have made under `cache_dir`, entry by entry, and pruning of it.

An entry is what is removed as one: the features of a split, the scan of a file, the ops of an environment.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from runner.engines import every_engine
from runner.engines.base import CacheFolder

_BESIDE = (".lock", ".progress")  # endings of files that belong to the entry of the same stem


def made() -> dict[str, CacheFolder]:
    """The folders under the cache, by name."""
    return {
        "features": CacheFolder("tokenised data", lock_of=lambda entry: entry.with_suffix(".lock")),
        "scans": CacheFolder("scans of data files"),
        "estimates": CacheFolder("passes over model classes for estimates"),
        **{name: folder for engine in every_engine() for name, folder in engine.cache_folders().items()},
        "tmp": CacheFolder("temporary files"),
    }


@dataclass(frozen=True)
class Entry:
    """Something that is removed as one.

    Attributes:
        lock: held by a process that is at work on the entry; None where nothing is locked.
        used: seconds since the epoch at which a run last used it.
    """

    path: Path
    lock: Path | None
    size: int
    used: float

    def remove(self) -> bool:
        """Remove it; False where a process is at work on it."""
        if self.lock is None or not self.lock.exists():
            self._remove()
            return True
        try:
            with filelock.FileLock(self.lock, timeout=0):
                self._remove()
        except filelock.Timeout:
            return False
        return True

    def _remove(self) -> None:
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)
        for ending in _BESIDE:
            self.path.with_suffix(ending).unlink(missing_ok=True)


def entries(cache: Path) -> list[Entry]:
    """All entries, the one not used for longest first."""
    found = []
    for name, folder in made().items():
        if not (cache / name).is_dir():
            continue
        for path in (item for item in (cache / name).iterdir() if item.suffix not in _BESIDE):
            used = path.lstat().st_mtime
            found.append(Entry(path, folder.lock_of(path) if folder.lock_of else None, size_of(path), used))
    return sorted(found, key=lambda entry: (entry.used, entry.path))


def prune(cache: Path, older_than: float | None, max_bytes: int | None) -> Iterator[tuple[Entry, bool]]:
    """Remove entries by age, then by size, the one not used for longest first.

    Args:
        older_than: seconds since the last use.
        max_bytes: what all entries together may take afterwards.

    Yields:
        Each entry that is too much, and whether it could be removed.
    """
    known, now = entries(cache), time.time()
    total = sum(entry.size for entry in known)
    for entry in known:
        old = older_than is not None and now - entry.used > older_than
        if old or (max_bytes is not None and total > max_bytes):
            removed = entry.remove()
            total -= entry.size if removed else 0
            yield entry, removed


def size_of(path: Path) -> int:
    """Bytes of a file, or of a folder's files; what vanishes meanwhile is left out, a file linked twice counts once."""
    seen: dict[tuple[int, int], int] = {}
    for item in (path, *path.rglob("*")):
        try:
            state = item.lstat()
        except OSError:
            continue
        if item.is_file() and not item.is_symlink():
            seen[(state.st_dev, state.st_ino)] = state.st_size
    return sum(seen.values())
