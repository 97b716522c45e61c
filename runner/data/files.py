"""Local files as rows. One reader for the checks before a run and for the run itself, so that both count alike."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.regular_files import check_regular

FORMATS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt")
Row = dict[str, Any]


class UnreadableFile(Exception):
    """A file that cannot be read as rows; the message says where and why."""


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a file by its ending: csv, tsv, jsonl, json (a list of objects), parquet, txt (one `text` a line).

    Blanks around column names are trimmed. An empty cell of a csv or tsv is None.

    Raises:
        UnreadableFile: naming the line, where there is one.
    """
    readers = {".csv": _csv, ".tsv": _tsv, ".jsonl": _jsonl, ".json": _json, ".parquet": _parquet, ".txt": _txt}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UnreadableFile(f"{path}: the ending {path.suffix or '(none)'} is not one of {', '.join(FORMATS)}")
    try:
        check_regular(path)
        yield from reader(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UnreadableFile(f"{path}: {_why(error)}") from None


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 (byte {error.start}); save it as UTF-8"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def header(path: Path) -> list[str]:
    """Column names as they stand in the file, blanks and all; from the first row where there is no header."""
    if path.suffix.lower() in (".csv", ".tsv"):
        try:
            check_regular(path)
            with open(path, newline="", encoding="utf-8-sig") as file:
                return next(csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ","), [])
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UnreadableFile(f"{path}: {_why(error)}") from None
    return list(next(read_rows(path), {}))


def _csv(path: Path) -> Iterator[Row]:
    return _separated(path, ",")


def _tsv(path: Path) -> Iterator[Row]:
    return _separated(path, "\t")


def _separated(path: Path, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=delimiter)
        names = [name.strip() for name in next(reader, [])]
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(names):
                raise UnreadableFile(f"{path}: line {reader.line_num} has {len(cells)} cells, the header {len(names)}")
            yield {name: cell if cell != "" else None for name, cell in zip(names, cells, strict=True)}


def _jsonl(path: Path) -> Iterator[Row]:
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _object(line, f"{path}: line {number}")


def _object(text: str, where: str) -> Row:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise UnreadableFile(f"{where} is no JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets in brackets
        raise UnreadableFile(f"{where} cannot be read ({error})") from None
    if not isinstance(row, dict):
        raise UnreadableFile(f"{where} is no JSON object")
    return {str(name).strip(): value for name, value in row.items()}


def _json(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UnreadableFile(
            f"{path}: line {error.lineno} is no JSON ({error.msg}); one object a line is called .jsonl"
        ) from None
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"{path}: cannot be read ({error})") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UnreadableFile(f"{path}: expected a list of objects")
    yield from ({str(name).strip(): value for name, value in row.items()} for row in rows)


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            yield from ({name.strip(): value for name, value in row.items()} for row in batch.to_pylist())
    except pyarrow.ArrowException as error:
        raise UnreadableFile(f"{path}: {error}") from None


def _txt(path: Path) -> Iterator[Row]:
    with open(path, encoding="utf-8-sig") as file:
        for line in file:
            yield {"text": line.rstrip("\n")}
