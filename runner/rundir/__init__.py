"""A run folder: what is in it, and what the runner and its ranks tell each other through it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from runner import __version__, machine
from runner.config import plan
from runner.config.schema import RunConfig
from runner.errors import EXIT_BAD_REQUEST, EXIT_COMPLETED, EXIT_FAILED, Problem, RequestError
from runner.rundir.record import FILE, SCHEMA_VERSION, Record, now, write_atomically

CONFIG_FILE = "config.yaml"
ACCELERATE_FILE = "accelerate.yaml"
DEEPSPEED_FILE = "ds_config.json"
COMMAND_FILE = "command.sh"
LOGS = "logs"
PREDICTION_FILE = "memory_prediction.json"
STOP_FILE = "stop"
STOP_AT = "stop_at"
STOP_EVALUATION = "stop_evaluation_at"
CHECKPOINT_AT = "checkpoint_at"
LOCK_FILE = ".lock"
STARTED_BY_RUNNER = "RUNNER_STARTED_RANK"


class Preempted(Exception):
    """The run was asked to end; `step` optimizer steps are done."""

    def __init__(self, step: int) -> None:
        super().__init__(f"asked to stop after optimizer step {step}")
        self.step = step


def write_config(run_dir: Path, config: RunConfig) -> None:
    """Write the resolved configuration; any YAML 1.1 reader gets numbers as numbers."""
    write_atomically(
        run_dir / CONFIG_FILE,
        yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=10_000),
    )


def read_config(run_dir: Path) -> RunConfig:
    """The resolved configuration of a run folder."""
    return RunConfig.model_validate(yaml.safe_load((run_dir / CONFIG_FILE).read_text(encoding="utf-8")))


def started_by_runner() -> bool:
    """Whether this rank was started by the runner, not by hand."""
    return STARTED_BY_RUNNER in os.environ


def command_start(run_dir: Path) -> float:
    """When the command was typed, in seconds of the machine's monotonic clock; by hand: now."""
    with contextlib.suppress(OSError, ValueError, KeyError):
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
    from runner.rundir import provenance

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
        "global_batch_size": plan.global_batch_size(config),
        "micro_batch_size": config.train.micro_batch_size,
        "gradient_accumulation_steps": config.train.gradient_accumulation_steps,
        "num_parameters": None,
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


def by_hand_folder(run_dir: Path) -> Path:
    """A new folder inside the run folder for ranks started by hand, so that no record is overwritten."""
    for number in range(1, 10_000):
        path = run_dir / f"by_hand_{number}"
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise RuntimeError(f"{run_dir} holds too many by_hand folders")


def request_stop(run_dir: Path) -> None:
    """Ask the ranks to end at the next optimizer step, or batch of an evaluation."""
    (run_dir / STOP_FILE).touch()


def stop_requested(run_dir: Path, step: int, is_main: bool) -> bool:
    """Whether to end before optimizer step `step` + 1, the same answer on every rank without a message."""
    if agreed_on_step(run_dir, STOP_AT, step):
        return True
    if is_main and os.path.exists(f"{run_dir}/{STOP_FILE}"):
        agree_on_step(run_dir, STOP_AT, step + 1)
    return False


def evaluation_stopped(run_dir: Path, batch: int, is_main: bool) -> bool:
    """Whether to end an evaluation before its micro batch number `batch`.

    Where batches need all ranks, no rank is past the batch that rank 0 names; where they do not, each rank ends as
    soon as it sees the name, and some may have finished: the ranks have to tell each other afterwards.
    """
    if not (run_dir / STOP_FILE).exists():
        return False
    named = [int(path.name.rpartition("_")[2]) for path in run_dir.glob(f"{STOP_EVALUATION}_*")]
    if is_main and not named:
        agree_on_step(run_dir, STOP_EVALUATION, batch + 1)
    return any(batch >= number for number in named)


def agree_on_step(run_dir: Path, what: str, step: int) -> None:
    """On rank 0, before it joins optimizer step `step`: have every rank do something right after that step.

    Another rank can only finish the step after rank 0 has joined it, so it finds the file in time. The step is
    in the file's name: an empty file can be made on a full disk, too.
    """
    with contextlib.suppress(OSError):
        (run_dir / f"{what}_{step}").touch()


def agreed_on_step(run_dir: Path, what: str, step: int) -> bool:
    """Whether rank 0 asked for something right after optimizer step `step`."""
    return os.path.exists(f"{run_dir}/{what}_{step}")  # at every step: a path object would take longer than the call


def clear_requests(run_dir: Path) -> None:
    """Forget what an earlier attempt was asked for."""
    for pattern in (STOP_FILE, f"{STOP_AT}_*", f"{STOP_EVALUATION}_*", f"{CHECKPOINT_AT}_*"):
        for path in run_dir.glob(pattern):
            path.unlink(missing_ok=True)


def restart_count() -> int:
    """How often torch elastic has started this rank again within the present attempt."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextlib.contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Hold the run folder: two runners must not write to one. The kernel lets go when the process ends, however it ends.

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


def run_by_hand(work: Callable[[str], None], arguments: list[str]) -> None:
    """Entry of a rank started by hand: keep the record true, whatever happens."""
    if len(arguments) != 1 or not (Path(arguments[0]) / CONFIG_FILE).is_file():
        print("error: RUN_DIR: give a folder written by `python -m runner render`", file=sys.stderr)
        sys.exit(EXIT_BAD_REQUEST)
    try:
        work(arguments[0])
    except RequestError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_BAD_REQUEST)
    except Exception:
        traceback.print_exc()
        sys.exit(EXIT_FAILED)
    # The work is done and the group is ended; threads of the libraries now and then abort an interpreter that winds down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_COMPLETED)
