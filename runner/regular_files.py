"""Only regular files are read: opening a FIFO or a device would wait for a writer for ever."""

from __future__ import annotations

import errno
from pathlib import Path


def check_regular(path: Path) -> None:
    """Raises OSError where `path` is there and is no regular file (FIFO, socket, device, folder)."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is no regular file", str(path))


def read_regular(path: Path) -> bytes:
    """Content of a regular file. Raises OSError, also for what is no regular file."""
    check_regular(path)
    return path.read_bytes()
