"""What a local split holds, read once before any rank starts: rows, columns, labels, missing texts."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from runner import places
from runner.data.files import header, read_rows
from runner.schema import DatasetConfig

SCAN_VERSION = 2


@dataclass
class SplitScan:
    """One split as it lies on disk."""

    rows: int
    columns: list[str]  # trimmed
    raw_columns: list[str]  # as they stand in the first file
    labels: dict[str, int] = field(default_factory=dict)  # label as JSON text → rows
    empty: dict[str, int] = field(default_factory=dict)  # column → number (from 1) of the first row without a value


def split_paths(dataset: DatasetConfig, split: str) -> list[Path]:
    """Files of a split, absolute; bundled ones lie with the package."""
    named = getattr(dataset, split)
    names = [named] if isinstance(named, str) else list(named or [])
    base = places.samples_dir() if dataset.source == "bundled" else Path.cwd()
    return [base / Path(name).expanduser() for name in names]


def scan_split(paths: list[Path], label_column: str | None, cache: Path, limit: int | None = None) -> SplitScan:
    """Scan the files of one split; the answer is kept under `cache`, by path, size and time of change.

    Raises:
        UnreadableFile: see `read_rows`.
    """
    key = hashlib.sha256(json.dumps([SCAN_VERSION, label_column, limit, [_stamp(path) for path in paths]]).encode()).hexdigest()
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
    for path in paths:
        for row in read_rows(path):
            if limit is not None and scan.rows >= limit:
                break
            scan.rows += 1
            for name, value in row.items():
                if value is None:
                    scan.empty.setdefault(name, scan.rows)
            if label_column in row:
                labels[json.dumps(row[label_column], ensure_ascii=False)] += 1
    scan.labels = dict(labels)
    return scan
