"""One rule for text at every border: what UTF-8 cannot hold and what a terminal would obey is written escaped."""

from __future__ import annotations


def is_utf8(text: str) -> bool:
    """Whether the text can be written as UTF-8: a file name with other bytes reaches Python as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def storable(text: str) -> str:
    """The text for a file: lone surrogates as the bytes they stand for, written `\\xNN`, others as `\\uNNNN`."""
    if is_utf8(text):
        return text
    return "".join(letter if is_utf8(letter) else _escape(letter) for letter in text)


def escaped(text: str) -> str:
    """The text for a terminal, in one piece: control characters and escape sequences are shown, not obeyed."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:  # Python's stand-in for a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
