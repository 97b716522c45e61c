"""The record of a cell that could not start: a row with its reason, as every other failed run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from runner import rundir
from runner.config.resolve import resolve_machine
from runner.config.schema import RunConfig
from runner.errors import Problem
from runner.execution import typed_command
from runner.record_format import SCHEMA_VERSION
from runner.rundir.record import Record, now
from runner.sweep.history import free_folder
from runner.sweep.jobs import Job


def reason_of(problems: list[Problem]) -> str:
    """All problems of a cell in one line."""
    return "; ".join(problem.line().removeprefix("error: ") for problem in problems)


def write_failed_record(job: Job, sweep: str, reason: str) -> Path:
    """Write `record.json` for a job that was refused; returns its folder."""
    job.run_dir = _folder(job.run_dir)
    job.run_dir.mkdir(parents=True, exist_ok=True)
    record = Record(job.run_dir)
    config = job.cell.composed.config if job.cell.composed else None
    record.data = _typed(config, job) if config else _untyped(job)
    record.data |= {
        "run_id": job.run_dir.name,
        "cell": job.record_entry(sweep),
        "attempts": [{"started_at": now(), "wall_seconds": 0.0}],
    }
    record.data["failure"] = {"rank": None, "log": None, "out_of_memory": False, "request": True}
    record.end_attempt("failed", reason)
    return job.run_dir


def _folder(wanted: Path) -> Path:
    """The job's folder; an earlier refusal in it is replaced, an earlier run is not."""
    try:
        refused = bool((Record.read(wanted).data.get("failure") or {}).get("request"))
    except (OSError, ValueError):
        refused = False
    return wanted if refused else free_folder(wanted)


def _typed(config: RunConfig, job: Job) -> dict[str, Any]:
    resolved, _ = resolve_machine(config)
    data = rundir.opening_record(resolved, typed_command(), job.cell.overrides)
    data["runner"]["started_monotonic"] = time.monotonic()
    return data


def _untyped(job: Job) -> dict[str, Any]:
    """The configuration is no typed one: what is known is what was composed and what was typed."""
    return {
        "schema_version": SCHEMA_VERSION,
        "started_at": now(),
        "command": typed_command(),
        "overrides": job.cell.overrides,
        "config": job.cell.plain,
        "epochs": [],
        "metrics": {},
        "phases": {},
        "artifacts": {},
    }
