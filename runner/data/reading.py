"""How data files are read: the keys that say so, what reading met on the way, and the one error of a file."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.config.inputs import DELIMITERS, DatasetConfig

Row = dict[str, Any]
Quoting = Literal["double", "none"]
FIRST = 5  # rows that are named of each fault


class UnreadableFile(Exception):
    """A file that cannot be read as rows; the message says where and why, `fix` what to do."""

    def __init__(self, message: str, fix: str = "fix the file") -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True)
class Reading:
    """The keys of `dataset` that decide how the bytes of a file become rows.

    Attributes:
        delimiter: one character between cells; None: by the file's ending.
        quoting: None: by the file's ending.
        encoding: Python's name of a text encoding; None: UTF-8, with or without a byte-order mark.
    """

    delimiter: str | None = None
    quoting: Quoting | None = None
    encoding: str | None = None

    @classmethod
    def of(cls, dataset: DatasetConfig) -> Reading:
        """As a run's configuration says."""
        delimiter = dataset.delimiter
        return cls(DELIMITERS.get(delimiter or "", delimiter), dataset.quoting, dataset.encoding)

    @property
    def codec(self) -> str:
        """The codec to decode with; UTF-8 loses its byte-order mark."""
        name = codecs.lookup(self.encoding or "utf-8").name
        return "utf-8-sig" if name == "utf-8" else name


@dataclass
class Findings:
    """One kind of fault: how many rows have it, and the first few, each in words or by its number."""

    count: int = 0
    first: list[Any] = field(default_factory=list)

    def add(self, place: object) -> None:
        """One more row."""
        self.count += 1
        if len(self.first) < FIRST:
            self.first.append(place)


@dataclass
class ReadLog:
    """What reading met in one split.

    Attributes:
        bad: rows that could not be read (too many cells, no JSON), in words.
        notes: what a user should know of files that were read.
    """

    bad: Findings = field(default_factory=Findings)
    notes: list[str] = field(default_factory=list)


OnBad = Callable[[str], None]  # called with a row that cannot be read, in words; returns, or raises UnreadableFile


def refuse(message: str) -> None:
    """For readers of whole files: the first bad row ends it."""
    raise UnreadableFile(message, "fix the row, or leave such rows out with dataset.drop_bad_rows=true")
