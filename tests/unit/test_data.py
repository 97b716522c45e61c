"""Reading, scanning and labelling local rows."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path

import pytest

from runner.data.files import UnreadableFile, header, read_rows
from runner.data.labels import HIDDEN, LabelMap, distinct, label_names, names_fit
from runner.data.scan import LIST, SURROGATE, scan_split


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'x, y\n1,"two, with comma"\n,"line\nbreak"\n'),
        ("a.tsv", "x\ty\n1\ttwo, with comma\n\tline\\nbreak\n"),
        ("a.jsonl", '{"x": "1", "y": "two, with comma"}\n\n{"x": null, "y": "z"}\n'),
        ("a.json", '[{"x": "1", " y": "two, with comma"}, {"x": null, "y": "z"}]'),
    ],
)
def test_formats_give_the_same_rows(name, text, tmp_path: Path):
    rows = list(read_rows(write(tmp_path / name, text)))
    assert rows[0] == {"x": "1", "y": "two, with comma"}
    assert rows[1]["x"] is None
    assert len(rows) == 2


def test_parquet(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1, None], "y": ["a", "b"]}), tmp_path / "a.parquet")
    assert list(read_rows(tmp_path / "a.parquet")) == [{"x": 1, "y": "a"}, {"x": None, "y": "b"}]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "x,y\n1,2,3\n", "line 2 has 3 cells, the header 2"),
        ("a.jsonl", '{"x": 1}\n{x}\n', "line 2 is no JSON"),
        ("a.json", '{"x": 1}', "expected a list of objects"),
        ("a.xml", "", "the ending .xml is not one of"),
        ("a.jsonl", '{"x": 1}\n{"x": ' + "[" * 100_000 + "]" * 100_000 + "}\n", "line 2 cannot be read"),
        ("a.jsonl", '{"x": ' + "1" * 5000 + "}\n", "line 1 cannot be read"),
        ("a.json", "[" * 100_000, "cannot be read"),
    ],
)
def test_unreadable_files_say_where(name, text, said, tmp_path: Path):
    with pytest.raises(UnreadableFile, match=said):
        list(read_rows(write(tmp_path / name, text)))


def test_scan_counts_rows_labels_and_missing_values(tmp_path: Path):
    path = write(tmp_path / "a.csv", "text ,label\na,1\nb,0\n,1\nc,\n")
    scan = scan_split([path], "label", tmp_path / "cache")
    assert (scan.rows, scan.columns, scan.raw_columns) == (4, ["text", "label"], ["text ", "label"])
    assert scan.labels == {'"1"': 2, '"0"': 1, "null": 1}
    assert scan.empty == {"text": 3, "label": 4}
    assert scan_split([path], "label", tmp_path / "cache", limit=2).rows == 2
    kept = [json.loads(file.read_text())["rows"] for file in (tmp_path / "cache" / "scans").glob("*.json")]
    assert sorted(kept) == [2, 4]
    assert header(path) == ["text ", "label"]


ROWS = (
    '{"a": "x", "b": "y", "label": 1}\n{"b": ["t", "u"], "label": [1]}\n{"a": "\\ud800", "b": [null], "label": '
    '0}\n{"a": {"k": 1}, "b": "ü", "late": 1}\n'
)


def test_scan_finds_missing_keys_and_what_is_no_text(tmp_path: Path):
    scan = scan_split([write(tmp_path / "a.jsonl", ROWS)], "label", tmp_path / "cache")
    assert scan.columns == ["a", "b", "label"]
    assert scan.empty == {"a": 2, "label": 4, "late": 1}
    assert scan.odd == {
        "a": {SURROGATE: 3, "an object": 4},
        "b": {LIST: 2, "a list of other things than texts": 3},
        "label": {LIST: 2},
    }
    assert scan.labels == {"1": 1, "0": 1}


def test_scan_of_parquet_knows_dates_and_bytes(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({" text": [b"a", b"b"], "label": [date(2026, 1, 1), date(2026, 1, 2)]}), tmp_path / "a.parquet"
    )
    assert scan_split([tmp_path / "a.parquet"], "label", tmp_path / "cache").odd == {
        "text": {"bytes": 1},
        "label": {"a date": 1},
    }


def test_a_row_is_named_by_its_file(tmp_path: Path):
    paths = [write(tmp_path / f"{name}.csv", "x\n1\n2\n") for name in "ab"]
    scan = scan_split(paths, None, tmp_path / "cache")
    assert scan.files == [2, 2]
    assert [scan.place(paths, row) for row in (2, 3)] == [f"row 2 of {paths[0]}", f"row 1 of {paths[1]}"]
    assert scan_split(paths[:1], None, tmp_path / "cache").place(paths[:1], 2) == "row 2"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("ending", ["csv", "jsonl", "txt", "json"])
def test_only_regular_files_are_read(ending: str, tmp_path: Path):
    os.mkfifo(tmp_path / f"pipe.{ending}")
    for read in (header, lambda path: list(read_rows(path))):
        with pytest.raises(UnreadableFile, match="is no regular file"):
            read(tmp_path / f"pipe.{ending}")


def test_a_changed_file_is_scanned_again(tmp_path: Path):
    path = write(tmp_path / "a.csv", "text\na\n")
    assert scan_split([path], None, tmp_path).rows == 1
    write(path, "text\na\nb\n")
    assert scan_split([path], None, tmp_path).rows == 2


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
