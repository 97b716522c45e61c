"""A rank process: its log, its errors, its end."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from runner import rundir
from runner.launch.process_signals import die_with_parent, leave_stopping_to_the_runner
from runner.rundir.rank_errors import begin_attempt, ended_marker, keep_error
from runner.secrets import redacted

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Words of torch's allocators, of cuBLAS and cuDNN when they make their workspaces, and of NCCL when it makes its
# buffers.
NO_MEMORY = (
    "out of memory",
    "defaultcpuallocator: can't allocate",
    "_status_alloc_failed",
    "failed to cuda calloc",
    "failed to cuda malloc",
)


def rank_entry(run_dir: str, parent: int) -> str:
    """Run one rank; returns `completed` or `preempted`.

    Output goes to logs/rank_N.log. An exception is kept in errors/rank_N.json before it ends the process,
    so that the runner can tell which rank failed first, and why.
    """
    die_with_parent(parent)
    rank = int(os.environ["RANK"])
    _own_log(Path(run_dir), rank)
    leave_stopping_to_the_runner()
    begin_attempt(Path(run_dir), rank, rundir.restart_count())
    _obey_only(parent, ended_marker(Path(run_dir), rank))
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # where it stands, when it hangs
    try:
        from runner.train.worker import run_rank  # inside: what cannot be imported is reported as any other error

        run_rank(run_dir)
    except rundir.Preempted:
        return "preempted"
    except BaseException as error:  # noqa: BLE001
        _keep_error(Path(run_dir), rank, error)
        os._exit(
            1
        )  # an interpreter that winds down would destroy the process group, for which NCCL waits for the other ranks
    return "completed"


def _own_log(run_dir: Path, rank: int) -> None:
    (run_dir / rundir.LOGS).mkdir(exist_ok=True)
    log = os.open(run_dir / rundir.LOGS / f"rank_{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = _log_text(1), _log_text(2)
    faulthandler.enable(sys.stderr)


class _Log(io.FileIO):
    """A log whose disk may be full: what cannot be written is lost, the rank continues. Secrets stay out of it."""

    def write(self, data: Buffer) -> int:
        content = bytes(data)
        text = redacted(content.decode("utf-8", "replace")).encode()
        with contextlib.suppress(OSError):
            super().write(text)
        return len(content)


def _log_text(descriptor: int) -> io.TextIOWrapper:
    raw = _Log(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="replace", line_buffering=True)


def _obey_only(agent: int, marker: Path) -> None:
    """SIGTERM ends this rank when torch elastic sends it, and at once. From anyone else it means the whole run, of
    which the runner takes care: Slurm sends it to every process of a job, and a rank has to live to write its
    checkpoint.
    """
    signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGTERM}
    )  # inherited by all threads: the signal waits for the one below
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def listen() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != agent:
            pass
        with contextlib.suppress(OSError):
            marker.parent.mkdir(exist_ok=True)
            marker.touch()
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    threading.Thread(target=listen, daemon=True, name="sigterm").start()


def _keep_error(run_dir: Path, rank: int, error: BaseException) -> None:
    traceback.print_exc()
    sys.stderr.flush()
    content = {
        "rank": rank,
        "time": time.monotonic(),  # one clock for all ranks of a machine; the wall clock may jump
        "type": type(error).__name__,
        "message": str(error),
        "out_of_memory": is_out_of_memory(error),
        **getattr(error, "facts", {}),
    }
    keep_error(run_dir, rank, content)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out: CUDA's and its libraries', the CPU
    allocator's, or Python's own.
    """
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(sign in text.lower() for sign in NO_MEMORY)
    )
