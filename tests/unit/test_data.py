"""Scanning and labelling local rows."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest

from runner.data.files import header, read_rows
from runner.data.labels import HIDDEN, LabelMap, distinct, label_names, names_fit
from runner.data.reading import Findings, Reading, UnreadableFile
from runner.data.scan import SplitScan, scan_split
from runner.data.source import SplitSource
from runner.data.values import CONVERSATION, EMPTY, LIST, NUMBER, OTHER_LIST, SURROGATE, Needs, kind_of


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def scanned(paths: list[Path], label: str | None, cache: Path, limit: int | None = None) -> SplitScan:
    return scan_split(SplitSource(tuple(paths), Reading(), Needs((), label=label), limit=limit), cache)


def rows_by_kind(scan: SplitScan, column: str) -> dict[str, list[object]]:
    return {kind: found.first for kind, found in scan.kinds.get(column, {}).items()}


def test_scan_counts_rows_labels_and_missing_values(tmp_path: Path):
    path = write(tmp_path / "a.csv", "text ,label\na,1\nb,0\n,1\nc,\n")
    scan = scanned([path], "label", tmp_path / "cache")
    assert (scan.rows, scan.columns, scan.raw_columns) == (4, ["text", "label"], ["text ", "label"])
    assert scan.labels == {'"1"': 2, '"0"': 1}
    assert (rows_by_kind(scan, "text"), rows_by_kind(scan, "label")) == ({EMPTY: ["row 3"]}, {EMPTY: ["row 4"]})
    assert scanned([path], "label", tmp_path / "cache", limit=2).rows == 2
    assert len(list((tmp_path / "cache" / "scans").glob("*.json"))) == 2
    assert header(path) == ["text ", "label"]


ROWS = (
    '{"a": "x", "b": "y", "label": 1}\n{"b": ["t", "u"], "label": [1]}\n{"a": "\\ud800", "b": [null, {}], "label": '
    '0}\n{"a": {"k": 1}, "b": "ü", "late": 1}\n'
)


def test_scan_finds_missing_keys_and_what_is_no_text(tmp_path: Path):
    scan = scanned([write(tmp_path / "a.jsonl", ROWS)], "label", tmp_path / "cache")
    assert scan.columns == ["a", "b", "label"]
    assert rows_by_kind(scan, "a") == {EMPTY: ["row 2"], SURROGATE: ["row 3"], "an object": ["row 4"]}
    assert rows_by_kind(scan, "b") == {LIST: ["row 2"], OTHER_LIST: ["row 3"]}
    assert rows_by_kind(scan, "label") == {LIST: ["row 2"], EMPTY: ["row 4"]}
    assert scan.kinds["late"][EMPTY] == Findings(3, ["row 1"])
    assert scan.labels == {"1": 1, "0": 1}


def test_a_kept_scan_is_the_same_and_a_broken_one_is_made_again(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", ROWS)
    first = scanned([path], "label", tmp_path / "cache")
    assert scanned([path], "label", tmp_path / "cache") == first
    (kept,) = (tmp_path / "cache" / "scans").glob("*.json")
    for broken in ("", "[]", kept.read_text()[:50], '{"rows": "x"}'):
        kept.write_text(broken)
        assert scanned([path], "label", tmp_path / "cache") == first


@pytest.mark.parametrize(
    ("value", "label", "kind"),
    [
        ("nan", False, None),  # text as it stands
        ("null", False, None),
        ("", False, EMPTY),
        (" \t", False, EMPTY),
        (None, False, EMPTY),
        (float("nan"), True, EMPTY),
        (3, False, NUMBER),
        (3.0, False, NUMBER),
        (3, True, None),
        (float("inf"), False, "a number that is not finite"),
        (True, False, "a truth value (true or false)"),
        (False, True, None),
        ([{"role": "user", "content": "a"}], False, CONVERSATION),
        ([{"from": "human", "value": "a"}], False, CONVERSATION),
        ([{"x": 1}], False, OTHER_LIST),
        ({"en": "a", "de": "b"}, False, "an object"),
    ],
)
def test_kinds_of_values(value: object, label: bool, kind: str | None):
    assert kind_of(value, label) == kind


def test_scan_of_parquet_knows_dates_and_bytes(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({" text": [b"a", b"b"], "label": [date(2026, 1, 1), date(2026, 1, 2)]}), tmp_path / "a.parquet"
    )
    scan = scanned([tmp_path / "a.parquet"], "label", tmp_path / "cache")
    assert rows_by_kind(scan, "text") == {"bytes": ["row 1", "row 2"]}
    assert rows_by_kind(scan, "label") == {"a date": ["row 1", "row 2"]}


def test_a_row_is_named_by_its_file(tmp_path: Path):
    paths = [write(tmp_path / f"{name}.csv", f"x\n1\n{cell}\n") for name, cell in (("a", '""'), ("b", '""'))]
    assert rows_by_kind(scanned(paths, None, tmp_path), "x") == {EMPTY: [f"row 2 of {path}" for path in paths]}
    assert rows_by_kind(scanned(paths[:1], None, tmp_path), "x") == {EMPTY: ["row 2"]}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("ending", ["csv", "jsonl", "txt", "json"])
def test_only_regular_files_are_read(ending: str, tmp_path: Path):
    os.mkfifo(tmp_path / f"pipe.{ending}")
    for read in (header, lambda path: list(read_rows(path))):
        with pytest.raises(UnreadableFile, match="is no regular file"):
            read(tmp_path / f"pipe.{ending}")


def test_a_changed_file_is_scanned_again(tmp_path: Path):
    path = write(tmp_path / "a.csv", "text\na\n")
    assert scanned([path], None, tmp_path).rows == 1
    write(path, "text\na\nb\n")
    assert scanned([path], None, tmp_path).rows == 2


def test_a_change_is_seen_although_size_and_time_were_put_back(tmp_path: Path):
    path = write(tmp_path / "a.csv", "text,label\na,1\n")
    before = path.stat()
    assert scanned([path], "label", tmp_path).labels == {'"1"': 1}
    write(path, "text,label\na,0\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert scanned([path], "label", tmp_path).labels == {'"0"': 1}


def test_labels_are_one_map():
    assert distinct(['"same"', '"different"', "null", "-1"]) == ["different", "same"]
    assert distinct(['"2"', '"1"', "2.0"]) == [1, 2]
    assert distinct(['"01"', '"1"']) == [1, "01"]  # two names, not one number
    assert label_names([1, 2], None) == ["1", "2"]
    assert label_names([0, 1], ["no", "yes"]) == ["no", "yes"]
    assert [names_fit(found, ["no", "yes"]) for found in ([0, 1], ["yes"], ["b", "a"], [0, 2], [-1, "no"])] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_ids_of_labels():
    numbers = LabelMap(["1", "2"])
    assert [numbers.id_of(value) for value in (1, "2", 2.0, -1, None)] == [0, 1, 1, HIDDEN, HIDDEN]
    names = LabelMap(["not_equivalent", "equivalent"])
    assert [names.id_of(value) for value in (0, "1", "equivalent")] == [0, 1, 1]
    assert 2 not in names
    with pytest.raises(KeyError):
        names.id_of("unsure")
