"""A rank process: its log, its errors, its end."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from runner import rundir
from runner.launch.lifeline import die_with_parent
from runner.record import write_atomically

ERRORS = "errors"


def rank_entry(run_dir: str, parent: int) -> str:
    """Run one rank; returns `completed` or `preempted`.

    Output goes to logs/rank_N.log. An exception is kept in errors/rank_N.json before it ends the process,
    so that the runner can tell which rank failed first, and why.
    """
    die_with_parent(parent)
    rank = int(os.environ["RANK"])
    _own_log(Path(run_dir), rank)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner decides how a run ends
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # where it stands, when it hangs
    from runner.train.worker import run_rank

    try:
        run_rank(run_dir)
    except rundir.Preempted:
        return "preempted"
    except BaseException as error:
        _keep_error(Path(run_dir), rank, error)
        raise SystemExit(1) from None
    return "completed"


def _own_log(run_dir: Path, rank: int) -> None:
    (run_dir / rundir.LOGS).mkdir(exist_ok=True)
    log = os.open(run_dir / rundir.LOGS / f"rank_{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr)


def _keep_error(run_dir: Path, rank: int, error: BaseException) -> None:
    traceback.print_exc()
    sys.stderr.flush()
    (run_dir / ERRORS).mkdir(exist_ok=True)
    content = {
        "rank": rank,
        "time": time.time(),
        "type": type(error).__name__,
        "message": str(error),
        "out_of_memory": is_out_of_memory(error),
        **getattr(error, "facts", {}),
    }
    write_atomically(run_dir / ERRORS / f"rank_{rank}.json", json.dumps(content))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out: CUDA's, the CPU allocator's, or Python's own."""
    text = str(error)
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "out of memory" in text.lower() or "DefaultCPUAllocator: can't allocate" in text
