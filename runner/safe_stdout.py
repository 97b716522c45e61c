"""Standard output and error as a command finds them: closed, full, without a reader, in an encoding that lacks
characters.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys

from runner.secrets import redacted


def open_streams() -> None:
    """Make both streams usable, once, at the entry: closed ones lead nowhere, and what a terminal cannot show is
    replaced.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell: `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
            setattr(sys, name, Redacting(stream))
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # a width of 0 is that of no terminal, and tables would be cut to nothing


class Redacting:
    """A stream of the terminal that masks secrets in what is printed."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write; returns the length of the text as it was given."""
        self._stream.write(redacted(text))
        return len(text)


def give_up_output() -> None:
    """From now on standard output leads nowhere; what Python's buffer still holds goes there too, instead of failing at
    exit.
    """
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)


def hand_on() -> None:
    """Hand on what standard output still holds; what cannot be is dropped."""
    try:
        sys.stdout.flush()
    except OSError:
        give_up_output()


class SafeStdout:
    """Standard output whose reader may go away while a run continues: a closed pipe, a closed terminal, a full disk."""

    def __getattr__(self, name: str) -> object:
        return getattr(sys.stdout, name)

    def write(self, text: str) -> int:
        """Write; what nobody can read any more is dropped."""
        try:
            return sys.stdout.write(text)
        except OSError:
            give_up_output()
            return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        hand_on()
