"""The rows of a split as the run has them: files in their order, bad rows left out, rows held out for validation.

The checks before a run and the preparation of features read through this one iterator.
"""

from __future__ import annotations

import glob
import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from runner import paths
from runner.config.inputs import DatasetConfig
from runner.data.files import read_rows
from runner.data.labels import as_label
from runner.data.reading import Findings, Reading, ReadLog, Row, refuse
from runner.data.values import Needs
from runner.recipe import Recipe

_PATTERN = frozenset("*?[")


def named_files(dataset: DatasetConfig, split: str) -> str | list[str] | None:
    """What the configuration names for a split; a validation split that is held out lies in the training files."""
    named: str | list[str] | None = getattr(dataset, split)
    if named is None and split == "validation" and dataset.validation_fraction is not None:
        return dataset.train
    return named


def split_paths(dataset: DatasetConfig, split: str) -> list[Path]:
    """Files of a split, absolute, patterns expanded in order of names; bundled ones lie with the package."""
    named = named_files(dataset, split)
    names = [named] if isinstance(named, str) else list(named or [])
    base = paths.samples_dir() if dataset.source == "bundled" else Path.cwd()
    return [path for name in names for path in _expanded(base / Path(name).expanduser())]


def _expanded(path: Path) -> list[Path]:
    """Regular files that a pattern fits; the path itself where it is none, or fits nothing."""
    if not _PATTERN & set(str(path)) or path.exists():
        return [path]
    found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
    return [item for item in found if item.is_file()] or [path]


@dataclass(frozen=True)
class Holdout:
    """Rows of the training files that are the validation split.

    Attributes:
        fraction: share of the rows, of each class alike.
        seed: of the draw.
        inside: whether this split is the rows held out, or the others.
    """

    fraction: float
    seed: int
    inside: bool

    def drawn(self, classes: Iterable[object]) -> set[int]:
        """Numbers (from 0) of the rows held out: of each class its share, rounded, and at least one row over all.

        Args:
            classes: the class of each row, the same for all rows where there are none.
        """
        members: dict[object, list[int]] = defaultdict(list)
        for index, value in enumerate(classes):
            members[value].append(index)
        draw = random.Random(self.seed)
        held = {
            index
            for _, rows in sorted(members.items(), key=lambda item: str(item[0]))
            for index in draw.sample(rows, round(len(rows) * self.fraction))
        }
        largest = max(members.values(), key=len, default=[])
        return held or set(largest[:1])


@dataclass(frozen=True)
class SplitSource:
    """Where the rows of one split come from, and which of them count."""

    paths: tuple[Path, ...]
    reading: Reading
    needs: Needs
    drop: bool = False
    limit: int | None = None
    holdout: Holdout | None = None

    @classmethod
    def of(cls, recipe: Recipe, split: str) -> SplitSource:
        """Of a run's local split. Rows of a test split are never left out: predictions follow the file."""
        dataset = recipe.config.dataset
        limits = {"train": dataset.max_train_rows, "validation": dataset.max_validation_rows}
        holdout = None
        if dataset.validation_fraction is not None and split != "test":
            holdout = Holdout(dataset.validation_fraction, dataset.validation_seed, split == "validation")
        needs = Needs.of(recipe, "train" if holdout else split)  # both parts are drawn from the same usable rows
        drop = dataset.drop_bad_rows and split != "test"
        files = tuple(split_paths(dataset, split))
        return cls(files, Reading.of(dataset), needs, drop, limits.get(split), holdout)

    @property
    def key(self) -> list[object]:
        """What decides the rows beside the files' content, for the names of kept answers and features."""
        holdout = self.holdout and [self.holdout.fraction, self.holdout.seed, self.holdout.inside]
        reading = [self.reading.delimiter, self.reading.quoting, self.reading.encoding]
        return [reading, self.needs.key if self.drop else None, self.limit, holdout]

    def place(self, path: Path, number: int) -> str:
        """A row in words: its number (from 1) in its file, and the file where there are several."""
        return f"row {number}" if len(self.paths) == 1 else f"row {number} of {path}"

    def rows(self, log: ReadLog | None = None, dropped: Findings | None = None) -> Iterator[tuple[str, Row]]:
        """Every row that counts, with its place in words, before any is held out and without the limit.

        Args:
            log: takes what reading met; rows that cannot be read are collected there. Without it, and without
                `drop`, the first such row is raised.
            dropped: takes the places of rows that were left out.

        Raises:
            UnreadableFile: see `read_rows`.
        """
        told = log or ReadLog()
        on_bad = told.bad.add if self.drop or log is not None else refuse
        for path in self.paths:
            for number, row in enumerate(read_rows(path, self.reading, on_bad, told), start=1):
                fault = self.needs.fault(row) if self.drop else None
                if fault is None:
                    yield self.place(path, number), row
                elif dropped is not None:
                    dropped.add(f"{self.place(path, number)}: {fault}")

    def held_out(self) -> list[int]:
        """Numbers (from 0, among the rows that count) of the rows held out for validation; reads the files once."""
        assert self.holdout is not None
        label = self.needs.label
        return sorted(self.holdout.drawn(as_label(row.get(label)) if label else None for _, row in self.rows()))

    def selected(
        self, held: Iterable[int], log: ReadLog | None = None, dropped: Findings | None = None
    ) -> Iterator[tuple[str, Row]]:
        """The split's rows, as `rows`, those of the other part left out, up to the limit."""
        every = self.rows(log, dropped)
        if self.holdout is not None:
            chosen, inside = set(held), self.holdout.inside
            every = (item for index, item in enumerate(every) if (index in chosen) == inside)
        return islice(every, self.limit)


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hashes(dataset: DatasetConfig) -> dict[str, list[list[str]]]:
    """Path and SHA-256 of every local file of every split, for the record; none of a hub data set."""
    if dataset.source == "hub":
        return {}
    splits = {split: split_paths(dataset, split) for split in ("train", "validation", "test")}
    hashed = partial(_hash_once, {})
    return {split: [[str(path), hashed(path)] for path in files] for split, files in splits.items() if files}


def _hash_once(known: dict[Path, str], path: Path) -> str:
    if path not in known:
        known[path] = file_hash(path)
    return known[path]
