"""Cells between delimiters (csv, tsv): a line that is no row is refused, never merged into another one in silence."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runner.config.inputs import DELIMITERS
from runner.data.opening import data_ending, open_text
from runner.data.reading import OnBad, Quoting, Reading, ReadLog, Row, UnreadableFile

MARK = '"'
_TABBED = (".tsv", ".tab")
_SEP_LINE = re.compile(r"sep=(.)")
_NO_QUOTING = "set dataset.quoting=none where the file has no quoting, else write each mark inside a cell twice"


@dataclass(frozen=True)
class Dialect:
    """How one file is cut into cells."""

    delimiter: str
    quoting: Quoting
    said: bool  # whether the user said how quotation marks are meant

    @classmethod
    def of(cls, path: Path, reading: Reading) -> Dialect:
        """As the keys say, else by the ending: a tab-separated file has no quoting (GLUE's form), a csv has."""
        tabbed = data_ending(path) in _TABBED
        delimiter = reading.delimiter or ("\t" if tabbed else ",")
        return cls(delimiter, reading.quoting or ("none" if tabbed else "double"), reading.quoting is not None)

    @property
    def quoted(self) -> bool:
        """Whether a cell may stand in quotation marks."""
        return self.quoting == "double"


@dataclass
class _Lines:
    """The physical lines of a file, those of the record under way kept."""

    source: Iterable[str]
    read: int = 0
    record: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[str]:
        for line in self.source:
            self.read += 1
            self.record.append(line)
            yield line


def separated_header(path: Path, reading: Reading) -> list[str]:
    """Column names as they stand in the file.

    Raises:
        UnreadableFile: also for a header that is one column with another delimiter in it.
    """
    dialect = Dialect.of(path, reading)
    with open_text(path, reading) as file:
        lines = _Lines(file)
        return _header(path, reading, dialect, _records(path, lines, dialect))


def separated_rows(path: Path, reading: Reading, on_bad: OnBad, log: ReadLog) -> Iterator[Row]:
    """Rows of a csv or tsv file; an empty cell is None, blanks around column names are trimmed."""
    dialect = Dialect.of(path, reading)
    with open_text(path, reading) as file:
        lines = _Lines(file)
        records = _records(path, lines, dialect)
        names = [name.strip() for name in _header(path, reading, dialect, records)]
        counted = _Counted(len(names), lines.read)
        for cells in records:
            if counted.skips(cells, lines):
                continue
            if len(cells) == len(names) and len(names) > 1 and [cell.strip() for cell in cells] == names:
                on_bad(f"{path}: line {lines.read} repeats the header")
                continue
            if len(cells) != len(names):
                on_bad(
                    f"{path}: line {lines.read} has {len(cells)} cells, the header "
                    f"{len(names)}{_maybe_quoted(cells, dialect)}"
                )
                continue
            if len(lines.record) > 1:
                _refuse_merged(path, lines, dialect, len(names))
            counted.row(cells)
            yield {name: cell if cell != "" else None for name, cell in zip(names, cells, strict=True)}
        log.notes += counted.notes(path, lines.read, dialect)


def _header(path: Path, reading: Reading, dialect: Dialect, records: Iterator[list[str]]) -> list[str]:
    names = next((cells for cells in records if cells), [])  # empty lines before it are no header
    hint = _SEP_LINE.fullmatch(dialect.delimiter.join(names).strip())
    if hint is not None:
        why = f"the first line is a spreadsheet's {hint[0]!r}, not the names of the columns"
        raise UnreadableFile(f"{path}: {why}", f"remove that line{_delimiter_words(hint[1], dialect)}")
    other = next((name for name, mark in DELIMITERS.items() if len(names) == 1 and mark in names[0]), None)
    if other is not None and DELIMITERS[other] != dialect.delimiter:
        why = f"the header is one column with {DELIMITERS[other]!r} in it: {_short(names[0])!r}"
        if reading.delimiter is None:
            raise UnreadableFile(f"{path}: {why}", f"set dataset.delimiter={other}")
        why += f", and dataset.delimiter={dialect.delimiter!r} holds for all files"
        raise UnreadableFile(f"{path}: {why}", "write all files with the same delimiter")
    return names


def _delimiter_words(delimiter: str, dialect: Dialect) -> str:
    name = next((name for name, mark in DELIMITERS.items() if mark == delimiter), None)
    return "" if name is None or delimiter == dialect.delimiter else f", and set dataset.delimiter={name}"


def _records(path: Path, lines: _Lines, dialect: Dialect) -> Iterator[list[str]]:
    csv.field_size_limit(2**31 - 1)
    reader = (
        csv.reader(lines, delimiter=dialect.delimiter, strict=True)
        if dialect.quoted
        else csv.reader(lines, delimiter=dialect.delimiter, quoting=csv.QUOTE_NONE, strict=True)
    )
    while True:
        lines.record.clear()
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise _quoting_fault(path, lines, dialect, error) from None
        if cells is None:
            return
        yield cells


def _quoting_fault(path: Path, lines: _Lines, dialect: Dialect, error: csv.Error) -> UnreadableFile:
    first = lines.read - len(lines.record) + 1
    opened = opening_mark(lines.record, dialect.delimiter)
    if not dialect.quoted or opened is None:
        return UnreadableFile(f"{path}: line {lines.read}: {error}")
    line, column = opened
    end = (
        "is never closed"
        if "end of data" in str(error)
        else f"closes in line {lines.read} before other text than a delimiter"
    )
    return UnreadableFile(
        f"{path}: the quotation mark that opens in line {first + line}, column {column}, {end}", _NO_QUOTING
    )


def opening_mark(record: list[str], delimiter: str) -> tuple[int, int] | None:
    """Line (from 0) and column (from 1) of the last quotation mark in a record that opened a cell."""
    found, inside, starts, after_mark = None, False, True, False
    for number, line in enumerate(record):
        for column, character in enumerate(line, start=1):
            if inside:
                if character == MARK:
                    inside, after_mark = False, True
                continue
            if character == MARK and after_mark:  # a mark written twice
                inside = True
            elif character == MARK and starts:
                inside, found = True, (number, column)
            starts = character in (delimiter, "\r", "\n")
            after_mark = False
    return found


def _refuse_merged(path: Path, lines: _Lines, dialect: Dialect, columns: int) -> None:
    """A cell over several lines each of which would be a whole row: marks that are text, not quoting, unless the user
    said otherwise.
    """
    if dialect.said or (columns < 3 and len(lines.record) < 3):
        return
    alone = [line.rstrip("\r\n").split(dialect.delimiter) for line in lines.record]
    if columns < 2 or any(len(cells) != columns or not all(cells) for cells in alone):
        return
    opened = opening_mark(lines.record, dialect.delimiter)
    first = lines.read - len(lines.record) + 1
    where = f"line {first + opened[0]}, column {opened[1]}," if opened else f"line {first}"
    raise UnreadableFile(
        f"{path}: the quotation mark that opens in {where} would make one row of lines {first} to {lines.read}, each "
        "of which is a whole row",
        "set dataset.quoting=none where the marks are text, or dataset.quoting=double where they are quoting",
    )


def _maybe_quoted(cells: list[str], dialect: Dialect) -> str:
    quoted = not dialect.quoted and any(cell.startswith(MARK) for cell in cells)
    return " (cells in quotation marks are read with dataset.quoting=double)" if quoted else ""


@dataclass
class _Counted:
    """Lines against rows, for the note where they differ."""

    columns: int
    header_lines: int
    rows: int = 0
    blank: int = 0
    several: int = 0
    in_marks: int = 0

    def skips(self, cells: list[str], lines: _Lines) -> bool:
        """Whether this is an empty line, which is no row."""
        if cells:
            self.several += len(lines.record) > 1
            return False
        self.blank += 1
        return True

    def row(self, cells: list[str]) -> None:
        """One row was read."""
        self.rows += 1
        self.in_marks += any(len(cell) > 1 and cell[0] == cell[-1] == MARK for cell in cells)

    def notes(self, path: Path, lines: int, dialect: Dialect) -> list[str]:
        """What is worth saying."""
        found = []
        if self.several or self.blank:
            why = [f"{self.several:,} rows span several lines"] * bool(self.several)
            why += [f"{self.blank:,} empty lines were skipped"] * bool(self.blank)
            found.append(
                f"{path}: {lines - self.header_lines:,} lines below the header hold {self.rows:,} rows: "
                f"{', '.join(why)}"
            )
        if not dialect.quoted and not dialect.said and self.in_marks > self.rows // 2:
            found.append(
                f"{path}: {self.in_marks:,} of {self.rows:,} rows have a cell in quotation marks, which stay in the "
                "text; "
                "dataset.quoting=double takes them as quoting"
            )
        return found


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
