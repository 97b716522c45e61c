"""Files as rows: rows in the file are rows in the run, or the file is refused with the place and what to do."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pytest

from runner.data.files import header, read_rows
from runner.data.reading import Reading, ReadLog, UnreadableFile


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'x, y\n1,"two, with comma"\n,"line\nbreak"\n'),
        ("a.tsv", "x\ty\n1\ttwo, with comma\n\tline\\nbreak\n"),
        ("a.jsonl", '{"x": "1", "y": "two, with comma"}\n\n{"x": null, "y": "z"}\n'),
        ("a.ndjson", '{"x": "1", "y": "two, with comma"}\n{"x": NaN, "y": "z"}\n'),
        ("a.json", '[{"x": "1", " y": "two, with comma"}, {"x": null, "y": "z"}]'),
        ("lines.json", '{"x": "1", "y": "two, with comma"}\n{"x": NaN, "y": "z"}\n'),
    ],
)
def test_formats_give_the_same_rows(name: str, text: str, tmp_path: Path):
    rows = list(read_rows(write(tmp_path / name, text)))
    assert rows[0] == {"x": "1", "y": "two, with comma"}
    assert rows[1]["x"] is None
    assert len(rows) == 2


def test_parquet_and_its_missing_numbers(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1.5, float("nan")], "y": ["a", "b"]}), tmp_path / "a.parquet")
    assert list(read_rows(tmp_path / "a.parquet")) == [{"x": 1.5, "y": "a"}, {"x": None, "y": "b"}]


def test_compressed_files_are_read_by_their_ending(tmp_path: Path):
    import pyarrow as pa

    text = b"x,y\n1,a\n2,b\n"
    write(tmp_path / "a.csv.gz", gzip.compress(text))
    write(tmp_path / "a.csv.bz2", bz2.compress(text))
    write(tmp_path / "a.csv.xz", lzma.compress(text))
    with pa.output_stream(str(tmp_path / "a.csv.zst"), compression="zstd") as stream:
        stream.write(text)
    for ending in ("gz", "bz2", "xz", "zst"):
        path = tmp_path / f"a.csv.{ending}"
        assert list(read_rows(path)) == [{"x": "1", "y": "a"}, {"x": "2", "y": "b"}]
        assert header(path) == ["x", "y"]


@pytest.mark.parametrize(
    ("name", "content", "said", "fix"),
    [
        ("a.csv", gzip.compress(b"x\n1\n", mtime=0), r"these bytes are compressed \(\.gz\)", "rename it to a.csv.gz"),
        ("a.csv.gz", b"x,y\n1,2\n", "is not compressed as .gz says", "rename it to a.csv"),
        ("a.csv.gz", gzip.compress(b"x\n" + b"1\n" * 9000, mtime=0)[:40], "cannot be decompressed", "anew"),
        ("a.jsonl", b"PAR1\x15\x04", "this is a Parquet file", "rename it to end in .parquet"),
        ("a.csv", b"PK\x03\x04\x14\x00", "a ZIP archive", "save it as CSV UTF-8"),
        ("a.xlsx", b"PK\x03\x04\x14\x00", "the ending .xlsx is not one of", "save the sheet as CSV UTF-8"),
        ("a.zip", b"PK\x03\x04", "the ending .zip is not one of", "unpack it"),
        ("a.csv", b"version https://git-lfs.github.com/spec/v1\noid", "a pointer of Git LFS", "git lfs pull"),
        ("a.csv", b"<!DOCTYPE html>\n<html>", "this is a web page", "download the file itself"),
        ("a.csv", "x,y\n1,2\nx,y\n3,4\n", "line 3 repeats the header", "drop_bad_rows"),
        ("a.xml", b"<a/>", "the ending .xml is not one of", "write it as .jsonl"),
        ("a.csv", "x;y;z\n1;2;3\n", "the header is one column with ';' in it: 'x;y;z'", "dataset.delimiter=semicolon"),
        ("a.csv", "x\ty\n1\t2\n", r"the header is one column with '\\t' in it", "set dataset.delimiter=tab"),
        ("a.csv", "x|y\n1|2\n", "the header is one column with '|' in it", "set dataset.delimiter=pipe"),
        ("a.tsv", "x,y\n1,2\n", "the header is one column with ',' in it", "set dataset.delimiter=comma"),
        ("a.csv", "x,y\n1,2,3\n", "line 2 has 3 cells, the header 2", "dataset.drop_bad_rows=true"),
        ("a.tsv", 'x\ty\n"a\tb"\t2\n', "line 2 has 3 cells, the header 2 .*dataset.quoting=double", "drop_bad_rows"),
        (
            "a.csv",
            "x\nZo\xeb est là\n".encode("latin-1"),
            r"line 2, column 3 \(byte 0xeb\); it may be cp1252",
            "=cp1252",
        ),
        ("a.txt", "ok\nПривет, как твои дела сегодня\n".encode("cp1251"), "line 2, column 1 .*cp1251", "=cp1251"),
        ("a.csv", "x,y\n日本語テキスト,1\n".encode("shift-jis"), "line 2, column 1 .*cp932", "dataset.encoding=cp932"),
        ("a.csv", "x,y\n中文文本测试,1\n".encode("gbk"), "line 2, column 1 .*gb18030", "dataset.encoding=gb18030"),
        ("a.csv", "sep=;\nx;y\n1;2\n", "the first line is a spreadsheet's 'sep=;'", "set dataset.delimiter=semicolon"),
        ("a.csv", "sep=,\nx,y\n1,2\n", "the first line is a spreadsheet's 'sep=,'", "remove that line"),
        ("a.csv", "x,y\n1,2\n".encode("utf-16"), "begins with the mark of UTF-16", "set dataset.encoding=utf-16"),
        ("a.csv", "x,y\n1,2\n".encode("utf-16-le"), "every other byte is zero", "set dataset.encoding=utf-16-le"),
        ("a.jsonl", '{"x": 1}\n{x}\n', "line 2 is no JSON", "dataset.drop_bad_rows=true"),
        ("a.jsonl", '[{"x": 1},\n{"x": 2}]\n', "the file is one JSON list", "rename it to end in .json"),
        ("a.jsonl", '{"x": 1}\n{"x": ' + "[" * 100_000 + "]" * 100_000 + "}\n", "line 2 cannot be read", ""),
        ("a.jsonl", '{"x": ' + "1" * 5000 + "}\n", "line 1 cannot be read", ""),
        ("a.json", "[" * 100_000, "cannot be read", ""),
        (
            "a.json",
            '{"version": 1, "data": [{"x": 1}, {"x": 2}]}',
            "'data' holds a list of 2 objects",
            "the list itself",
        ),
        ("a.json", '[{"x": 1}, 2]', "item 2 is no JSON object", "dataset.drop_bad_rows=true"),
    ],
)
def test_unreadable_files_say_where_and_what_to_do(
    name: str, content: str | bytes, said: str, fix: str, tmp_path: Path
):
    with pytest.raises(UnreadableFile, match=said) as caught:
        list(read_rows(write(tmp_path / name, content)))
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("name", "content", "reading"),
    [
        ("a.csv", "x;y\n1;ü\n", Reading(delimiter=";")),
        ("a.csv", "x,y\n1,ü\n".encode("cp1252"), Reading(encoding="cp1252")),
        ("a.csv", "x,y\n1,ü\n".encode("utf-16"), Reading(encoding="utf-16")),
        ("a.csv", "\ufeffx,y\r\n1,ü\r\n", Reading()),
        ("a.tsv", 'x\ty\n1\t"ü"\n', Reading(quoting="double")),
        ("a.csv", "x,y\r1,ü\r", Reading()),
        ("a.csv", "\n\r\nx,y\n1,ü\n", Reading()),
        ("a.jsonl", '{"x": "1", "y": "ü"}'.encode("utf-16-le"), Reading(encoding="utf-16-le")),
    ],
)
def test_the_keys_say_how_a_file_is_read(name: str, content: str | bytes, reading: Reading, tmp_path: Path):
    assert list(read_rows(write(tmp_path / name, content), reading)) == [{"x": "1", "y": "ü"}]


@pytest.mark.parametrize(
    ("content", "reading", "said", "fix"),
    [
        (b"x,y\n1,2\n", Reading(delimiter=";"), "dataset.delimiter=';' holds for all files", "the same delimiter"),
        (b"x,y\n1,2\n", Reading(encoding="utf-16"), "is not utf-16, which dataset.encoding says", "like the others"),
    ],
)
def test_a_key_that_fits_another_file_only_says_so(
    content: bytes, reading: Reading, said: str, fix: str, tmp_path: Path
):
    with pytest.raises(UnreadableFile, match=said) as caught:
        list(read_rows(write(tmp_path / "a.csv", content), reading))
    assert fix in caught.value.fix


def test_a_tab_separated_file_keeps_lone_quotation_marks_and_all_its_rows(tmp_path: Path):
    cells = ['"We will not wait , he said .', 'a "b" c', '"whole"', '"']
    path = write(tmp_path / "a.tsv", "s1\ts2\n" + "".join(f"{cell}\t{index}\n" for index, cell in enumerate(cells)))
    assert [row["s1"] for row in read_rows(path)] == cells


@pytest.mark.parametrize(
    ("rows", "line", "column"),
    [
        (["1,a,b", '0,c,"He said no.', "1,e,f"], 3, 5),  # never closed
        (["1,a,b", '0,c,"He said no.', "1,e,f", '0,"g",h'], 3, 5),  # the next cell in marks closes it
        (["1,a,b", '0,c,"He said no.', "1,e,f", '0,g,a board of 5"'], 3, 5),  # a later mark at a cell's end closes it
        (['1,"a"b,c'], 2, 3),  # text after the closing mark
        (["1,a,b", '"x', 'y",c,d', '1,c,"open'], 5, 5),  # a good cell over two lines before it
    ],
)
def test_a_mark_that_would_swallow_rows_is_refused_with_its_line(
    rows: list[str], line: int, column: int, tmp_path: Path
):
    path = write(tmp_path / "a.csv", "\n".join(["label,s1,s2", *rows, ""]))
    with pytest.raises(UnreadableFile, match=f"opens in line {line}, column {column},") as caught:
        list(read_rows(path))
    assert "dataset.quoting=none" in caught.value.fix
    as_text = list(read_rows(path, Reading(quoting="none"))) if line != 5 else []
    assert len(as_text) == (len(rows) if line != 5 else 0)


def test_cells_over_several_lines_are_read_and_said(tmp_path: Path):
    path = write(tmp_path / "a.csv", 'text,label\n"Dear Sir,\n\nplease call.\n",1\n\nshort,0\n')
    log = ReadLog()
    rows = list(read_rows(path, log=log))
    assert [row["text"] for row in rows] == ["Dear Sir,\n\nplease call.\n", "short"]
    assert log.notes == [
        f"{path}: 6 lines below the header hold 2 rows: 1 rows span several lines, 1 empty lines were skipped"
    ]


def test_whole_rows_in_marks_are_quoting_where_the_user_says_so(tmp_path: Path):
    path = write(tmp_path / "a.csv", 'a,b,c\n1,x,"1,y\n2,z"\n'.replace("1,y", "p,q,r"))
    (row,) = read_rows(path, Reading(quoting="double"))
    assert row["c"] == "p,q,r\n2,z"


def test_quoted_cells_of_a_tab_separated_file_are_said(tmp_path: Path):
    log = ReadLog()
    list(read_rows(write(tmp_path / "a.tsv", 'x\ty\n"a"\t"b"\n"c"\td\n'), log=log))
    assert "2 of 2 rows have a cell in quotation marks" in log.notes[0]
    assert "dataset.quoting=double" in log.notes[0]


def test_bad_rows_are_collected_where_somebody_takes_them(tmp_path: Path):
    bad: list[str] = []
    path = write(tmp_path / "a.csv", "x,y\n1,2\n3\n4,5,6\n7,8\n")
    assert [row["x"] for row in read_rows(path, on_bad=bad.append)] == ["1", "7"]
    assert [text.partition(": ")[2] for text in bad] == [
        "line 3 has 1 cells, the header 2",
        "line 4 has 3 cells, the header 2",
    ]
    path = write(tmp_path / "a.jsonl", '{"x": 1}\n[1]\n{"x": \n{"x": 2}\n')
    assert [row["x"] for row in read_rows(path, on_bad=bad.append)] == [1, 2]
    assert len(bad) == 4


def test_json_infinity_stays_a_number_and_nan_is_missing(tmp_path: Path):
    (row,) = read_rows(write(tmp_path / "a.jsonl", '{"a": NaN, "b": Infinity, "c": [NaN, "x"]}\n'))
    assert row == {"a": None, "b": float("inf"), "c": [None, "x"]}
