"""Objects as rows: one a line (jsonl), or a list of them (json). NaN is a missing value."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.data.opening import open_text
from runner.data.reading import OnBad, Reading, ReadLog, Row, UnreadableFile


def _constant(name: str) -> float | None:
    """Python's JSON takes NaN and ±Infinity: the first is how pandas writes a missing value."""
    return None if name == "NaN" else float(name)


def _parsed(text: str) -> object:
    return json.loads(text, parse_constant=_constant)


def json_lines(path: Path, reading: Reading, on_bad: OnBad, _log: ReadLog) -> Iterator[Row]:
    """Rows of a file with one object a line; empty lines are skipped."""
    with open_text(path, reading) as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and line.lstrip().startswith("["):
                raise UnreadableFile(
                    f"{path}: line 1 is no JSON object, the file is one JSON list", "rename it to end in .json"
                )
            if line.strip():
                row = _object(line, f"{path}: line {number}", on_bad)
                if row is not None:
                    yield row


def _object(text: str, where: str, on_bad: OnBad) -> Row | None:
    try:
        row = _parsed(text)
    except json.JSONDecodeError as error:
        fault = f"is no JSON ({error.msg}, column {error.colno})"
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets in brackets
        fault = f"cannot be read ({error})"
    else:
        if isinstance(row, dict):
            return {str(name).strip(): value for name, value in row.items()}
        fault = "is no JSON object"
    on_bad(f"{where} {fault}")
    return None


def json_list(path: Path, reading: Reading, on_bad: OnBad, log: ReadLog) -> Iterator[Row]:
    """Rows of a file that is one list of objects; one object a line under this ending is read as well."""
    if _one_a_line(path, reading):
        yield from json_lines(path, reading, on_bad, log)
        return
    with open_text(path, reading) as file:
        text = file.read()
    try:
        rows = _parsed(text)
    except json.JSONDecodeError as error:
        raise UnreadableFile(f"{path}: line {error.lineno}, column {error.colno} is no JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"{path}: cannot be read ({error})") from None
    if isinstance(rows, dict):
        raise UnreadableFile(
            f"{path}: expected a list of objects, this is one object{_lists_in(rows)}", "write the list itself"
        )
    if not isinstance(rows, list):
        raise UnreadableFile(f"{path}: expected a list of objects, this is a {type(rows).__name__}")
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict):
            yield {str(name).strip(): value for name, value in row.items()}
        else:
            on_bad(f"{path}: item {number} is no JSON object")


def _one_a_line(path: Path, reading: Reading) -> bool:
    """Whether the first line with text is a whole object and another one follows, or it stands alone in the file with
    plain values.
    """
    with open_text(path, reading) as file:
        first, second = [*itertools.islice((line for line in file if line.strip()), 2), "", ""][:2]
    if not first.lstrip().startswith("{"):
        return False
    try:
        row = _parsed(first)
    except (ValueError, RecursionError):
        return False
    values = row.values() if isinstance(row, dict) else ()
    return bool(second.strip()) or not any(isinstance(value, (list, dict)) for value in values)


def _lists_in(content: dict[str, Any]) -> str:
    """Where the rows may be: keys that hold a list of objects."""
    names = [
        name for name, value in content.items() if isinstance(value, list) and value and isinstance(value[0], dict)
    ]
    return f" whose {names[0]!r} holds a list of {len(content[names[0]])} objects" if names else ""
