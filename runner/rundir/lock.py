"""One runner at a time in a run folder."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from runner.errors import Problem, RequestError
from runner.rundir.names import LOCK_FILE


@contextlib.contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Hold the run folder: two runners must not write to one. The kernel lets go when the process ends, however it
    ends.

    Raises:
        RequestError: when another process holds it.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = open(run_dir / LOCK_FILE, "w")  # noqa: SIM115 - closed below
    except OSError as error:
        raise RequestError(
            Problem("hydra.run.dir", run_dir, f"it cannot be written to ({error.strerror})", "set hydra.run.dir=DIR")
        ) from None
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            why = "this run is still going on (another process holds its folder)"
            raise RequestError(
                Problem(str(run_dir), None, why, "wait for its end, or end it with Ctrl-C or SIGTERM")
            ) from None
        except OSError:
            pass  # a file system without locks; the record's process id has to do
        yield
