"""Local files as rows. One reader for the checks before a run and for the run itself, so that both count alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

from runner.data.json_rows import json_lines, json_list
from runner.data.opening import COMPRESSED, data_ending, open_text
from runner.data.reading import OnBad, Reading, ReadLog, Row, UnreadableFile, refuse
from runner.data.separated import separated_header, separated_rows
from runner.regular_files import check_regular

Reader = Callable[[Path, Reading, OnBad, ReadLog], Iterator[Row]]
FORMATS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt")
_EXPORT = "save the sheet as CSV UTF-8 and name that file"
_OTHERS = {
    ".xlsx": _EXPORT,
    ".xls": _EXPORT,
    ".ods": _EXPORT,
    ".zip": "unpack it and name the file inside",
    ".tar": "unpack it and name the file inside",
    ".arrow": "write it as .parquet",
    ".feather": "write it as .parquet",
    ".pkl": "write it as .jsonl: a pickle runs code when it is read",
    ".yaml": "write it as .json",
    ".xml": "write it as .jsonl, one object a line",
}


def read_rows(
    path: Path, reading: Reading | None = None, on_bad: OnBad = refuse, log: ReadLog | None = None
) -> Iterator[Row]:
    """Rows of a file by its ending: csv, tsv, jsonl, json, parquet, txt (one `text` a line), also compressed.

    Blanks around column names are trimmed. An empty cell of a csv or tsv, and NaN anywhere, is None.

    Args:
        on_bad: called for each row that cannot be read, in words; without it the first one is raised.

    Raises:
        UnreadableFile: naming the line, where there is one.
    """
    reader = _READERS.get(data_ending(path))
    if reader is None:
        raise UnreadableFile(*_unknown(path))
    try:
        check_regular(path)
        yield from reader(path, reading or Reading(), on_bad, log or ReadLog())
    except OSError as error:
        raise UnreadableFile(f"{path}: {error.strerror or error}") from None


def header(path: Path, reading: Reading | None = None) -> list[str]:
    """Column names as they stand in the file, blanks and all; from the first row where there is no header."""
    if data_ending(path) not in SEPARATED:
        return list(next(read_rows(path, reading, on_bad=lambda _: None), {}))
    try:
        check_regular(path)
        return separated_header(path, reading or Reading())
    except OSError as error:
        raise UnreadableFile(f"{path}: {error.strerror or error}") from None


def _unknown(path: Path) -> tuple[str, str]:
    ending = data_ending(path)
    known = f"{', '.join(FORMATS)} (compressed: {', '.join(COMPRESSED)})"
    return (
        f"{path}: the ending {ending or '(none)'} is not one of {known}",
        _OTHERS.get(ending, "give the file the ending of what it holds"),
    )


def _parquet(path: Path, _reading: Reading, _on_bad: OnBad, _log: ReadLog) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1000):
            yield from ({name.strip(): _value(value) for name, value in row.items()} for row in batch.to_pylist())
    except pyarrow.ArrowException as error:
        raise UnreadableFile(f"{path}: {error}", "write the file anew") from None


def _value(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value


def _txt(path: Path, reading: Reading, _on_bad: OnBad, _log: ReadLog) -> Iterator[Row]:
    with open_text(path, reading) as file:
        for line in file:
            yield {"text": line.rstrip("\r\n")}


SEPARATED = (".csv", ".tsv", ".tab")
_READERS: dict[str, Reader] = {
    **dict.fromkeys(SEPARATED, separated_rows),
    **dict.fromkeys((".jsonl", ".ndjson"), json_lines),
    ".json": json_list,
    ".parquet": _parquet,
    ".txt": _txt,
}
