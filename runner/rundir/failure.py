"""Why a run ended: the first failing rank's own error in one sentence."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.rundir.heartbeat import read_heartbeats
from runner.rundir.names import LOGS, log_of
from runner.rundir.rank_errors import ended_marker, errors_before_restart, errors_of_attempt

FACTS = ("phase", "device", "peak_bytes", "capacity_bytes")
AFTERMATH = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "socket closed",
    "read: connection",
    "timed out waiting",
    "gloo",
    "nccl",
)


@dataclass(frozen=True)
class Failure:
    """The first failing rank.

    Attributes:
        rank: its number; None where no rank is to blame.
        message: its error in one sentence.
        log: the file with the whole story.
        out_of_memory: whether memory ran out.
        facts: what the rank knew too: phase, device, peak_bytes, capacity_bytes.
    """

    rank: int | None
    message: str
    log: Path
    out_of_memory: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


class KnownFailure(Exception):
    """A run that failed for a reason outside its ranks: a node that is gone."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def first_failure(run_dir: Path, outcome: dict[str, Any]) -> Failure:
    """Which rank failed first, and of what.

    A rank that was killed leaves no error; the others then fail because it is gone. So a rank ended by a
    signal comes before all errors, and errors of broken connections come after all others.
    """
    killed = {
        int(rank): -code
        for rank, code in outcome.get("failures", {}).items()
        if code is not None and code < 0 and -code != signal.SIGTERM
    }
    errors = sorted(errors_of_attempt(run_dir), key=lambda error: (_is_aftermath(error), error["time"]))
    own_errors = [error for error in errors if not _is_aftermath(error)]
    if own_errors:
        return _from_error(run_dir, own_errors[0])
    if not killed:
        left = _left(run_dir, outcome, {error["rank"] for error in errors})
        if left is not None:
            return left
    if killed:
        rank, number = min(killed.items())
        name = signal.Signals(number).name
        hint = " (by hand, or by the kernel because memory ran out)" if number == signal.SIGKILL else ""
        return Failure(rank, f"rank {rank} was killed by {name}{hint}", log_of(run_dir, rank), out_of_memory=False)
    if errors:
        return _from_error(run_dir, errors[0])
    return Failure(None, _without_rank(outcome), run_dir / LOGS / "launch.log")


def _left(run_dir: Path, outcome: dict[str, Any], reported: set[int]) -> Failure | None:
    """The rank that ended without a message while the others lost their connections to it.

    Torch elastic reports whichever rank it sees first, often one of those others. Of the ranks that kept no error
    and were
    not ended by torch elastic, the one whose heartbeat stopped first is the one that is gone: killed, or left by a call
    that ends a process at once (`os._exit`); its exit status, where it is known, tells which.
    """
    beats = {
        rank: beat["monotonic"] if isinstance(beat.get("monotonic"), float) else 0.0
        for rank, beat in read_heartbeats(run_dir).items()
        if rank not in reported and not ended_marker(run_dir, rank).exists()
    }
    if not beats:
        return None
    rank = min(beats, key=lambda number: beats[number])
    code = outcome.get("failures", {}).get(str(rank))
    if code is not None and code >= 0:
        how = (
            f"ended with exit status {code} and without an error: something called os._exit, or a "
            "library ended the process"
        )
    elif not reported:
        return None
    elif code == -signal.SIGKILL:
        how = "was killed by SIGKILL (by hand, or by the kernel because memory ran out)"
    else:
        how = (
            "ended without an error: killed by SIGKILL (by hand, or by the kernel because memory ran "
            "out), or by os._exit"
        )
    return Failure(rank, f"rank {rank} {how}", log_of(run_dir, rank))


def restart_reason(run_dir: Path, count: int) -> str:
    """Why torch elastic started the ranks again for the `count`-th time, from the errors that were kept."""
    errors = sorted(errors_before_restart(run_dir, count), key=lambda error: (_is_aftermath(error), error["time"]))
    own_errors = [error for error in errors if not _is_aftermath(error)]
    return _from_error(run_dir, own_errors[0]).message if own_errors else "a rank was killed"


def _is_aftermath(error: dict[str, Any]) -> bool:
    return not error["out_of_memory"] and any(sign in error["message"].lower() for sign in AFTERMATH)


def _from_error(run_dir: Path, error: dict[str, Any]) -> Failure:
    lines = [line.strip() for line in error["message"].splitlines() if line.strip()]
    text = f"{error['type']}: {lines[0]}" if lines else error["type"]
    rank = error["rank"]
    return Failure(
        rank,
        f"rank {rank}: {text[:500]}",
        log_of(run_dir, rank),
        error["out_of_memory"],
        {key: error[key] for key in FACTS if key in error},
    )


def _without_rank(outcome: dict[str, Any]) -> str:
    if "error" in outcome:
        return str(outcome["error"])
    if outcome.get("failures"):
        codes = ", ".join(f"rank {rank}: exit status {code}" for rank, code in sorted(outcome["failures"].items()))
        return f"the ranks ended without a message ({codes})"
    return f"the ranks could not be started (exit status {outcome.get('job_exit')})"
