"""Writing a checkpoint's files so that a failed write is known, and nothing waits for a rank that failed.

DeepSpeed writes between collective operations. If a full disk raised an exception on one rank there, the others
would wait for it for ever; so the error is kept, the rank continues, and all ranks compare notes at the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import torch

from runner.checkpoint.manifest import FileFacts
from runner.memory.amounts import in_words
from runner.rundir.record import FULL


class _HashingFile:
    """A new file that counts and hashes what is written to it, and remembers the error of a failed write.

    torch turns a failed write into texts such as `unexpected pos 576 vs 534`; the true reason is `error`.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by `finish` or `abandon`
        self._digest, self._bytes = hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        try:
            self._file.write(view)
        except OSError as error:
            self.error = error
            raise
        self._digest.update(view)
        self._bytes += len(view)
        return len(view)

    def flush(self) -> None:
        self._file.flush()

    def finish(self) -> FileFacts:
        """Bring the content to the disk."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            self.error = error
            raise
        return FileFacts(self._bytes, self._digest.hexdigest())

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class Writer:
    """Writes this rank's files of one checkpoint; after the first failure it writes nothing more.

    Attributes:
        files: name inside the folder → size and checksum of what was written.
        error: the first failure.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, FileFacts] = {}
        self.error: OSError | None = None

    def save(self, content: object, name: str) -> None:
        """`torch.save` into the folder; a failed write is kept in `error`.

        Raises:
            Exception: whatever is no failed write.
        """
        if self.error is not None:
            return
        try:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            file = _HashingFile(self.folder / name)
        except OSError as error:
            self.error = error
            return
        try:
            torch.save(content, file)  # type: ignore[arg-type]  # all it needs of a file is `write`
            self.files[name] = file.finish()
        except Exception:
            if file.error is None:
                raise
            self.error = file.error
        finally:
            file.abandon()


def failure_text(error: OSError, folder: Path, needed_bytes: int) -> str:
    """What went wrong with a checkpoint, with the numbers that help."""
    if error.errno not in FULL:
        return f"the checkpoint could not be written: {error.strerror or error} at {folder}"
    return f"disk full: the checkpoint needs {in_words(needed_bytes)}, free {in_words(free_bytes(folder))} at {folder}"


def free_bytes(folder: Path) -> int:
    """Free space of the volume that holds a folder (or will hold it), in bytes; 0 where it cannot be asked."""
    there = next((path for path in [folder, *folder.parents] if path.exists()), folder)
    try:
        facts = os.statvfs(there)
    except OSError:
        return 0
    return facts.f_bavail * facts.f_frsize
