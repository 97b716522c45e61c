"""Reading, scanning and labelling local rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.data.files import UnreadableFile, header, read_rows
from runner.data.labels import HIDDEN, LabelMap, distinct, label_names
from runner.data.scan import scan_split


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
    assert label_names(["b", "a"], ["no", "yes"]) == ["b", "a"]


def test_ids_of_labels():
    numbers = LabelMap(["1", "2"])
    assert [numbers.id_of(value) for value in (1, "2", 2.0, -1, None)] == [0, 1, 1, HIDDEN, HIDDEN]
    names = LabelMap(["not_equivalent", "equivalent"])
    assert [names.id_of(value) for value in (0, "1", "equivalent")] == [0, 1, 1]
    assert 2 not in names
    with pytest.raises(KeyError):
        names.id_of("unsure")
