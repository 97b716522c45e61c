"""How a record begins: by the runner, before any rank starts, or by rank 0 of ranks started by hand."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from runner import __version__, machine
from runner.config import plan
from runner.config.schema import RunConfig
from runner.record_format import SCHEMA_VERSION
from runner.rundir import provenance
from runner.rundir.names import PREDICTION_FILE
from runner.rundir.rank_environment import started_by_runner
from runner.rundir.record import FILE, Record, now

AGENT_START = "RUNNER_AGENT_START"  # on a node that is not the head: its own clock says nothing about the record's


def command_start(run_dir: Path) -> float:
    """When the command was typed, in seconds of the machine's monotonic clock; by hand: now."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        if AGENT_START in os.environ:
            return float(os.environ[AGENT_START])
        if started_by_runner():
            return float(Record.read(run_dir).data["runner"]["started_monotonic"])
    return time.monotonic()


def this_process() -> dict[str, Any]:
    """Who writes the record: enough to tell later whether this very process still lives."""
    import psutil

    return {
        "version": __version__,
        "pid": os.getpid(),
        "create_time": psutil.Process().create_time(),
        "host": os.uname().nodename,
        "boot_id": machine.boot_id(),
    }


def opening_record(config: RunConfig, command: str, overrides: list[str]) -> dict[str, Any]:
    """The record's keys that are known before any rank starts."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": "",
        "status": "running",
        "reason": None,
        "started_at": now(),
        "ended_at": None,
        "method": plan.method(config),
        "command": command,
        "overrides": overrides,
        "note": config.note,
        "config": config.model_dump(mode="json"),
        "config_hash": provenance.config_hash(config),
        "code": provenance.code(),
        "versions": provenance.versions(),
        "hardware": machine.description(config.launcher.gpu_ids),
        "runner": {**this_process(), "started_monotonic": time.monotonic()},
        "world_size": plan.world_size(config),
        "data_parallel_size": plan.data_parallel_size(config),
        "global_batch_size": plan.global_batch_size(config),
        "micro_batch_size": config.train.micro_batch_size,
        "gradient_accumulation_steps": config.train.gradient_accumulation_steps,
        "num_parameters": None,
        "trained_parameters": None,
        "optimizer_steps": 0,
        "epochs": [],
        "metrics": {},
        "phases": {},
        "time_to_first_step_seconds": None,
        "wall_seconds": None,
        "peak_memory_bytes": [],
        "memory_prediction": None,
        "attempts": [],
        "artifacts": {},
        "cell": None,
        "fit": None,
    }


def open_record(run_dir: Path, config: RunConfig) -> Record:
    """The record for rank 0 to continue: the runner's, or a new one when started by hand."""
    if (run_dir / FILE).exists():
        record = Record.read(run_dir)
        record.may_wait = True
        return record
    record = Record(run_dir)
    record.data = opening_record(config, " ".join(sys.argv), [])
    record.update(run_id=run_dir.name, attempts=[{"started_at": now(), "status": "running"}])
    return record


def memory_prediction(run_dir: Path) -> dict[str, Any] | None:
    """The run's memory prediction, once it is written."""
    try:
        content: dict[str, Any] = json.loads((run_dir / PREDICTION_FILE).read_text())
    except (OSError, ValueError):
        return None
    return content
