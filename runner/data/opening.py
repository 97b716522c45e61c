"""Data files as text: decompressed by their ending, decoded, and refused in words where the bytes
are something else.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, TextIO, cast

from runner.data.reading import Reading, UnreadableFile
from runner.regular_files import check_regular

SAMPLE_BYTES = 64 * 1024


def _zstd(path: Path) -> IO[bytes]:
    import pyarrow

    return cast(IO[bytes], pyarrow.input_stream(str(path), compression="zstd"))


def _plain(path: Path) -> IO[bytes]:
    return open(path, "rb")


# Ending → its first bytes, and how it is opened.
COMPRESSED: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    ".gz": (b"\x1f\x8b", partial(gzip.open, mode="rb")),
    ".bz2": (b"BZh", partial(bz2.open, mode="rb")),
    ".xz": (b"\xfd7zXZ\x00", partial(lzma.open, mode="rb")),
    ".zst": (b"\x28\xb5\x2f\xfd", _zstd),
}
_EXPORT = "open it and save it as CSV UTF-8, then name that file"
_OTHER_BYTES = (
    (b"PAR1", "a Parquet file", "rename it to end in .parquet"),
    (b"PK\x03\x04", "a ZIP archive (a spreadsheet's .xlsx is one)", f"unpack it, or, of a spreadsheet, {_EXPORT}"),
    (b"\xd0\xcf\x11\xe0", "an old spreadsheet (.xls)", _EXPORT),
    (b"ARROW1", "an Arrow file", "write it as Parquet"),
    (b"version https://git-lfs", "a pointer of Git LFS", "fetch the file itself with git lfs pull"),
    (b"<!DOCTYPE html", "a web page", "download the file itself"),
    (b"<html", "a web page", "download the file itself"),
    (b"%PDF", "a PDF", "write its text as .jsonl or .txt"),
)
_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


_OTHER = re.compile(rb"[\x80-\xff]+")  # than ASCII
_OF_TWO_BYTES = ("big5", "big5hkscs", "cp932", "cp949", "euc_jp", "euc_kr", "gb18030", "gb2312", "gbk", "shift_jis")


def data_ending(path: Path) -> str:
    """The ending that says what the rows are, without that of a compression: `.jsonl` of `a.jsonl.gz`."""
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return name.suffix.lower()


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The decompressed bytes of a regular file.

    Raises:
        UnreadableFile: where the first bytes are not what the ending says, or the rest cannot be decompressed.
    """
    check_regular(path)
    ending = path.suffix.lower()
    magic, opener = COMPRESSED.get(ending, (b"", _plain))
    with open(path, "rb") as file:
        start = file.read(8)
    if start and magic and not start.startswith(magic):
        raise UnreadableFile(f"{path}: is not compressed as {ending} says", f"rename it to {path.stem}")
    if not magic:
        for other, (first, _) in COMPRESSED.items():
            if start.startswith(first):
                raise UnreadableFile(
                    f"{path}: these bytes are compressed ({other})", f"rename it to {path.name}{other}"
                )
    try:
        with opener(path) as opened:
            yield opened
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UnreadableFile(f"{path}: cannot be decompressed ({error})", "fetch or write the file anew") from None


@contextlib.contextmanager
def open_text(path: Path, reading: Reading) -> Iterator[TextIO]:
    """The decoded text of a file; line ends stay as they are.

    Raises:
        UnreadableFile: other bytes than text, or text in another encoding; then with line, column and a likely
            encoding.
    """
    with open_bytes(path) as raw:
        buffered = io.BufferedReader(cast(io.RawIOBase, raw), SAMPLE_BYTES)
        _refuse_other_bytes(path, buffered.peek(SAMPLE_BYTES), reading)
        try:
            with io.TextIOWrapper(buffered, encoding=reading.codec, newline="") as text:
                yield text
        except UnicodeError:
            raise _undecodable(path, reading) from None


def _refuse_other_bytes(path: Path, start: bytes, reading: Reading) -> None:
    for first, what, fix in _OTHER_BYTES:
        if start.startswith(first):
            raise UnreadableFile(f"{path}: this is {what}, not the data", fix)
    if reading.encoding is not None:
        return
    for mark, encoding in _MARKS:
        if start.startswith(mark):
            raise UnreadableFile(
                f"{path}: begins with the mark of {encoding.upper()}", f"set dataset.encoding={encoding}"
            )
    zeros = start.count(0)
    if zeros and zeros > len(start) // 4:
        likely = "utf-16-le" if start[1:2] == b"\0" else "utf-16-be"
        raise UnreadableFile(f"{path}: every other byte is zero, as in UTF-16", f"set dataset.encoding={likely}")


def _undecodable(path: Path, reading: Reading) -> UnreadableFile:
    """Line, column and byte of the first character that cannot be decoded, and what encoding it may be."""
    if reading.encoding is not None:
        fix = f"save it as {reading.encoding} like the others, or all of them as UTF-8 with dataset.encoding=null"
        return UnreadableFile(f"{path}: is not {reading.encoding}, which dataset.encoding says of all files", fix)
    with open_bytes(path) as raw:
        for number, line in enumerate(raw, start=1):
            try:
                line.decode(reading.codec)
            except UnicodeError as error:
                at = getattr(error, "start", 0)
                column = len(line[:at].decode(reading.codec, errors="replace")) + 1
                likely = _likely_encoding(line + raw.read(SAMPLE_BYTES))
                fix = f"set dataset.encoding={likely}, or save the file as UTF-8" if likely else "save it as UTF-8"
                where = f"line {number}, column {column} (byte 0x{line[at]:02x})"
                return UnreadableFile(f"{path}: is not UTF-8: {where}{_looks_like(likely)}", fix)
    return UnreadableFile(f"{path}: is not UTF-8", "save it as UTF-8")


def _looks_like(encoding: str | None) -> str:
    return f"; it may be {encoding}" if encoding else ""


def _likely_encoding(sample: bytes) -> str | None:
    """What charset-normalizer takes the lines with such bytes for; single accents among plain letters, of which there
    are too few to tell, stand for Windows' Western code page.
    """
    from charset_normalizer import from_bytes

    lines = b"\n".join(line for line in sample.splitlines() if _OTHER.search(line))
    best = from_bytes(lines, cp_exclusion=["utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_7"]).best()
    runs = _OTHER.findall(lines)
    if best is None or best.encoding not in _OF_TWO_BYTES:
        with contextlib.suppress(UnicodeDecodeError):
            if sum(len(run) == 1 for run in runs) > len(runs) / 2 and sample.decode("cp1252"):
                return "cp1252"
    return best.encoding if best is not None else None
