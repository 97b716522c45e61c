"""Data files as text: decompressed by their ending, decoded, and refused in words where the bytes
are something else.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
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
    named = "UTF-8" if reading.encoding is None else reading.encoding
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
                return UnreadableFile(f"{path}: is not {named}: {where}{_looks_like(likely)}", fix)
    return UnreadableFile(f"{path}: is not {named}", "save it as UTF-8")


def _looks_like(encoding: str | None) -> str:
    return f"; it may be {encoding}" if encoding else ""


def _likely_encoding(sample: bytes) -> str | None:
    """Windows' Western code page where its accents stand among many plain letters, else what charset-normalizer takes
    it for.
    """
    from charset_normalizer import from_bytes

    other = [byte for byte in sample if byte > 127]
    letters = sum(chr(byte).isalpha() for byte in sample if byte < 128)
    with contextlib.suppress(UnicodeDecodeError):
        if len(other) < letters / 2 and sample.decode("cp1252"):
            return "cp1252"
    best = from_bytes(sample).best()
    return best.encoding if best is not None else None
