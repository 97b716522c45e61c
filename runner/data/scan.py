"""What a local split holds, read once before any rank starts: rows, columns, labels, missing texts."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from runner import paths
from runner.config.schema import DatasetConfig
from runner.data.files import header, read_rows

SCAN_VERSION = 3

LIST = "a list"  # of texts
SURROGATE = "text with half a character (a lone surrogate such as \\ud800)"


@dataclass
class SplitScan:
    """One split as it lies on disk."""

    rows: int
    columns: list[str]  # trimmed
    raw_columns: list[str]  # as they stand in the first file
    labels: dict[str, int] = field(default_factory=dict)  # label as JSON text → rows
    empty: dict[str, int] = field(
        default_factory=dict
    )  # column → number (from 1) of the first row without a value or without the key
    odd: dict[str, dict[str, int]] = field(
        default_factory=dict
    )  # column → what is no plain value (see `kind_of`) → its first row
    files: list[int] = field(default_factory=list)  # rows read from each file

    def place(self, paths: list[Path], row: int) -> str:
        """A row of the split in words: its number (from 1) in its file, and the file where there are several."""
        index = 0
        while len(paths) > 1 and row > self.files[index]:
            row -= self.files[index]
            index += 1
        return f"row {row}" if len(paths) == 1 else f"row {row} of {paths[index]}"


def split_paths(dataset: DatasetConfig, split: str) -> list[Path]:
    """Files of a split, absolute; bundled ones lie with the package."""
    named = getattr(dataset, split)
    names = [named] if isinstance(named, str) else list(named or [])
    base = paths.samples_dir() if dataset.source == "bundled" else Path.cwd()
    return [base / Path(name).expanduser() for name in names]


def scan_split(paths: list[Path], label_column: str | None, cache: Path, limit: int | None = None) -> SplitScan:
    """Scan the files of one split; the answer is kept under `cache`, by path, size and time of change.

    Raises:
        UnreadableFile: see `read_rows`.
    """
    key = hashlib.sha256(
        json.dumps([SCAN_VERSION, label_column, limit, [_stamp(path) for path in paths]]).encode()
    ).hexdigest()
    kept = cache / "scans" / f"{key}.json"
    try:
        return SplitScan(**json.loads(kept.read_text()))
    except (OSError, ValueError, TypeError):
        scan = _scan(paths, label_column, limit)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False) as file:
            json.dump(asdict(scan), file)
        os.replace(file.name, kept)
    except OSError:
        pass  # a scan that cannot be kept is only slower next time
    return scan


def _stamp(path: Path) -> list[object]:
    state = path.stat()
    return [str(path), state.st_size, state.st_mtime_ns, state.st_ino]


def _scan(paths: list[Path], label_column: str | None, limit: int | None) -> SplitScan:
    raw = header(paths[0]) if paths else []
    scan = SplitScan(rows=0, columns=[name.strip() for name in raw], raw_columns=raw)
    labels: Counter[str] = Counter()
    known = set(scan.columns)
    for path in paths:
        before = scan.rows
        for row in read_rows(path):
            if limit is not None and scan.rows >= limit:
                break
            scan.rows += 1
            if row.keys() != known:
                _missing_keys(scan, known, set(row))
            for name, value in row.items():
                if value is None:
                    scan.empty.setdefault(name, scan.rows)
                elif (kind := kind_of(value, name == label_column)) is not None:
                    scan.odd.setdefault(name, {}).setdefault(kind, scan.rows)
            label = row.get(label_column) if label_column else None
            if label_column in row and kind_of(label, True) is None:
                labels[json.dumps(label, ensure_ascii=False)] += 1
        scan.files.append(scan.rows - before)
    scan.labels = dict(labels)
    return scan


def _missing_keys(scan: SplitScan, known: set[str], names: set[str]) -> None:
    """Keys that this row lacks, and keys that all earlier rows lacked."""
    for name in known - names:
        scan.empty.setdefault(name, scan.rows)
    for name in names - known:
        if scan.rows > 1:
            scan.empty.setdefault(name, 1)
        known.add(name)


def kind_of(value: object, label: bool = False) -> str | None:
    """What a value is, where it is neither text nor a number that stands for text; None where it is.

    Args:
        label: whether it has to be a class: text, a number or a truth value, nothing that only can be printed.
    """
    if isinstance(value, str):
        return None if value.isascii() or _encodes(value) else SURROGATE
    if isinstance(value, (list, tuple)):
        return (
            LIST
            if all(isinstance(part, (str, int, float)) and kind_of(part) is None for part in value)
            else "a list of other things than texts"
        )
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, bytes):
        return "bytes"
    return None if not label or value is None or isinstance(value, (bool, int, float)) else f"a {type(value).__name__}"


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
