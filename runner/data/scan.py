"""What a local split holds, read once before any rank starts: rows, columns, labels, and values that are no text."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from runner.data.files import header
from runner.data.reading import Findings, ReadLog, Row
from runner.data.source import SplitSource, file_hash
from runner.data.values import EMPTY, kind_of

SCAN_VERSION = 5
MOST_DISTINCT = 1000  # values of a column that are told apart, where a needed column is missing


@dataclass
class SplitScan:
    """One split as it lies on disk.

    Attributes:
        rows: of the run: without those left out or held out, up to the limit.
        columns: names, blanks around them trimmed.
        raw_columns: as they stand in the first file.
        labels: label as JSON text → rows.
        kinds: column → what is no plain text (see `kind_of`) → its rows. Of the label column: what is no class.
        wrong: rows that the recipe's own check refuses.
        bad: rows that cannot be read.
        dropped: rows left out by `dataset.drop_bad_rows`, beside `bad`.
        distinct: different values by column, up to MOST_DISTINCT; only where a needed column is missing.
        notes: what reading has to say.
        held: numbers (from 0) of the rows held out for validation.
    """

    rows: int
    columns: list[str]
    raw_columns: list[str]
    labels: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, dict[str, Findings]] = field(default_factory=dict)
    wrong: Findings = field(default_factory=Findings)
    bad: Findings = field(default_factory=Findings)
    dropped: Findings = field(default_factory=Findings)
    distinct: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    @property
    def left_out(self) -> int:
        """Rows that the run goes without."""
        return self.bad.count + self.dropped.count


_KEPT = TypeAdapter(SplitScan)


def scan_split(source: SplitSource, cache: Path) -> SplitScan:
    """Scan the files of one split; the answer is kept under `cache`, by path, size and time of change.

    Raises:
        UnreadableFile: see `read_rows`.
    """
    own_check = source.needs.row_problem
    code = None if own_check is None else _code_of(own_check)
    parts = [SCAN_VERSION, source.key, source.needs.key, code, [_stamp(path) for path in source.paths]]
    kept = cache / "scans" / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.json"
    try:
        return _KEPT.validate_json(kept.read_bytes())
    except (OSError, ValueError):
        scan = _scan(source)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("wb", dir=kept.parent, delete=False) as file:
            file.write(_KEPT.dump_json(scan))
        os.replace(file.name, kept)
    except OSError:
        pass  # a scan that cannot be kept is only slower next time
    return scan


def _stamp(path: Path) -> list[object]:
    """Changes with every write; the time of the last change of the inode cannot be set back by hand."""
    state = path.stat()
    return [str(path), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]


def _code_of(check: object) -> str:
    """A recipe's own check decides what is found: its options and its file are a part of the answer's name."""
    import inspect

    from runner.recipe import Recipe

    recipe = check.__self__ if inspect.ismethod(check) else None
    assert isinstance(recipe, Recipe), "`row_problem` is a recipe's"
    return file_hash(Path(inspect.getfile(type(recipe)))) + str(recipe.options.model_dump(mode="json"))


def _scan(source: SplitSource) -> SplitScan:
    raw = header(source.paths[0], source.reading) if source.paths else []
    columns = [name.strip() for name in raw]
    held = source.held_out() if source.holdout is not None else []
    scan, log = SplitScan(rows=0, columns=columns, raw_columns=raw, held=held), ReadLog()
    seen = _Seen(scan, source)
    for place, row in source.selected(held, log, scan.dropped):
        seen.row(place, row)
    scan.labels, scan.bad, scan.notes = dict(seen.labels), log.bad, log.notes
    scan.distinct = {name: len(values) for name, values in seen.values.items()}
    return scan


class _Seen:
    """Takes the rows one after the other."""

    def __init__(self, scan: SplitScan, source: SplitSource) -> None:
        needs = source.needs
        self.scan, self.labels = scan, Counter[str]()
        self._needs, self._label, self._known = needs, needs.label, set(scan.columns)
        self._row_problem = needs.row_problem
        self._first = ""
        missing = {*needs.texts, *([needs.label] if needs.label else [])} - self._known
        self.values: dict[str, set[object]] = {name: set() for name in scan.columns} if missing else {}

    def row(self, place: str, row: Row) -> None:
        scan = self.scan
        scan.rows += 1
        self._first = self._first or place
        if row.keys() != self._known:
            self._missing_keys(place, set(row))
        for name, value in row.items():
            kind = self._needs.label_kind(value) if name == self._label else kind_of(value)
            if kind is not None:
                self._found(name, kind, place)
        self._count_label(row)
        if self._row_problem is not None and (why := self._row_problem(row)) is not None:
            scan.wrong.add(f"{place} {why}")
        for name, values in self.values.items():
            if len(values) < MOST_DISTINCT:
                values.add(str(row.get(name)))

    def _found(self, column: str, kind: str, place: str) -> None:
        self.scan.kinds.setdefault(column, {}).setdefault(kind, Findings()).add(place)

    def _missing_keys(self, place: str, names: set[str]) -> None:
        """Keys that this row lacks, and keys that all earlier rows lacked."""
        for name in self._known - names:
            self._found(name, EMPTY, place)
        for name in names - self._known:
            earlier = self.scan.rows - 1
            if earlier:
                self.scan.kinds.setdefault(name, {})[EMPTY] = Findings(earlier, [self._first])
            self._known.add(name)

    def _count_label(self, row: Row) -> None:
        label = row.get(self._label) if self._label else None
        if label is not None and self._needs.label_kind(label) is None:
            self.labels.update(json.dumps(one, ensure_ascii=False) for one in self._needs.labels(label))
