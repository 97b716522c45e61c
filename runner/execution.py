"""One checked run, from its rendered files to its closed record."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from runner import metrics, render, rundir
from runner.checkpoint.folders import newest, remove_converted
from runner.config import plan
from runner.config.resolve import resolve_owners
from runner.data.source import content_hashes
from runner.engines import engine_of
from runner.engines.base import BuildFailed, OpBuild
from runner.errors import EXIT_COMPLETED, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OUT_OF_MEMORY, EXIT_PREEMPTED
from runner.launch.host_client import Host, HostDied
from runner.launch.memory_advice import memory_advice
from runner.launch.process_signals import Stopping
from runner.launch.watch import Interrupted, StallDetected, StoppedEarly, Watch
from runner.monitors.system_log import sampled
from runner.preflight.assets import resolved_assets
from runner.preflight.check import Checked
from runner.rundir.failure import Failure, KnownFailure, first_failure
from runner.rundir.record import Record, now
from runner.rundir.trusted import recipe_facts
from runner.secrets import redact_file
from runner.trackers.background import tracked

PREDICTION_SECONDS = 10.0  # longest wait for the memory prediction at the end of a run


@dataclass
class Ended:
    """How a run ended.

    Attributes:
        status: completed, preempted, failed or interrupted.
        failure: for failed, what failed first.
        record: the closed record.
    """

    status: str
    record: Record
    failure: Failure | None = None

    @property
    def exit_code(self) -> int:
        """The command's exit status."""
        if self.status == "failed" and self.failure is not None and self.failure.out_of_memory:
            return EXIT_OUT_OF_MEMORY
        return {"completed": EXIT_COMPLETED, "preempted": EXIT_PREEMPTED, "interrupted": EXIT_INTERRUPTED}.get(
            self.status, EXIT_FAILED
        )


class Launch(Protocol):
    """Starts the ranks of a run and waits for their end."""

    def run(self, host: Host, run_dir: Path, environment: dict[str, str], watch: Callable[[], None]) -> dict[str, Any]:
        """The outcome, as `Host.run` returns it.

        Raises:
            KnownFailure: for what no rank could tell.
        """


class OneMachine:
    """All ranks under this host."""

    def run(self, host: Host, run_dir: Path, environment: dict[str, str], watch: Callable[[], None]) -> dict[str, Any]:
        """As `Host.run`."""
        return host.run("run", run_dir, environment, watch)


@dataclass
class Request:
    """What `execute` needs besides the checked run.

    Attributes:
        started_monotonic: when the command was typed; times in the record count from there.
        extra: further keys of the record (cell, fit, memory_prediction).
    """

    checked: Checked
    overrides: list[str]
    started_monotonic: float = field(default_factory=time.monotonic)
    extra: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    launch: Launch = field(default_factory=lambda: OneMachine())


def execute(request: Request, host: Host, stop: Stopping, console: Console) -> Ended:
    """Render, launch, watch, close the record. Whatever happens, the record says how the run ended."""
    with rundir.held(request.checked.run_dir):
        _open(request)
        return run_attempt(request, host, stop, console)


def _open(request: Request) -> None:
    """Rendered files and a new record."""
    checked, run_dir = request.checked, request.checked.run_dir
    render.write(render.render(checked.config, run_dir, checked.total_steps, checked.own_file), run_dir)
    record = Record(run_dir)
    record.data = rundir.opening_record(checked.config, typed_command(), request.overrides)
    record.data["runner"]["started_monotonic"] = request.started_monotonic
    record.data |= {"run_id": run_dir.name, "notices": [problem.line() for problem in checked.notices]}
    record.data |= {
        "assets": resolved_assets(checked.config),
        "recipe": recipe_facts(checked.config),
        "metric_versions": metrics.versions(list(checked.recipe.metrics)),
        "data_files": content_hashes(checked.config.dataset),
        **request.extra,
    }
    record.update(attempts=[{"started_at": now(), "status": "running"}], artifacts=_artifacts(run_dir))


def run_attempt(request: Request, host: Host, stop: Stopping, console: Console) -> Ended:
    """Launch ranks on a run folder whose files and record are written, and close the record.

    Beside it the machine is sampled, and trackers are sent what the folder says; both read files only.
    """
    run_dir = request.checked.run_dir
    with (
        tracked(run_dir, request.checked.config, console),
        sampled(run_dir, request.started_monotonic),
    ):
        return _attempt(request, host, stop, console)


def _attempt(request: Request, host: Host, stop: Stopping, console: Console) -> Ended:
    run_dir = request.checked.run_dir
    config = request.checked.config
    rundir.clear_requests(run_dir)  # of an attempt whose runner was killed: this one would stop at once
    with (
        engine_of(config).run_resources(config, run_dir),
        Watch(run_dir, config, stop, console, host.kill_job) as watch,
    ):
        try:
            outcome = _launch(request, host, watch, stop, console)
        except Interrupted:
            return _close(run_dir, "interrupted", Failure(None, "ended at once, as asked", run_dir / rundir.LOGS))
        except StallDetected as stalled:
            return _close(run_dir, "failed", Failure(None, str(stalled), run_dir / rundir.LOGS))
        except HostDied as died:
            return _close(
                run_dir,
                "failed",
                Failure(None, f"the host process ended: {died}", run_dir / rundir.LOGS / "launch.log"),
            )
        except KnownFailure as known:
            return _close(run_dir, "failed", known.failure)
        except StoppedEarly:
            return _close(run_dir, "preempted", None)
        except (PreparationFailed, BuildFailed) as failed:
            return _close(run_dir, "failed", Failure(None, str(failed), run_dir / rundir.LOGS / "launch.log"))
        except Exception as error:  # none of ours is known: it is raised on, with the record closed
            _close(
                run_dir,
                "failed",
                Failure(None, f"the runner failed: {type(error).__name__}: {error}", run_dir / rundir.LOGS),
            )
            raise
    if outcome["status"] == "failed":
        return _close(run_dir, "failed", first_failure(run_dir, outcome))
    return _close(run_dir, outcome["status"], None)


def _launch(request: Request, host: Host, watch: Watch, stop: Stopping, console: Console) -> dict[str, Any]:
    """What has to be there before ranks start, then the ranks; returns how they ended."""
    run_dir = request.checked.run_dir
    if request.checked.total_steps is None:
        _prepare(request, host, watch)
    _build_ops(request, host, watch, stop, console)
    if not (run_dir / rundir.PREDICTION_FILE).exists():
        host.start_in_background("predict", run_dir, request.environment)
    if stop.asked:
        raise StoppedEarly
    return request.launch.run(host, run_dir, request.environment, watch)


def _build_ops(request: Request, host: Host, watch: Watch, stop: Stopping, console: Console) -> None:
    """Compile what the run's engine needs, where it is not built yet; the record keeps how long it took."""

    def watched() -> None:
        watch()
        if stop.asked:
            raise StoppedEarly

    checked = request.checked
    build = OpBuild(
        host, checked.run_dir, request.environment, watched, partial(console.print, highlight=False, markup=False)
    )
    seconds = engine_of(checked.config).build_ops(checked.config, checked.own_file, build)
    if seconds:
        Record.read(checked.run_dir).update(op_build_seconds=seconds)


class PreparationFailed(RuntimeError):
    """The data could not be prepared."""


def _prepare(request: Request, host: Host, watch: Watch) -> None:
    """Tokenise first where the number of optimizer steps depends on it, then render what depends on that."""
    checked = request.checked
    outcome = host.run("prepare", checked.run_dir, request.environment, watch)
    if outcome["status"] != "completed":
        raise PreparationFailed(outcome.get("error", "preparing the data failed"))
    checked.config.dataset.rows = outcome["rows"]
    checked.total_steps = plan.total_steps(outcome["rows"]["train"], checked.config)
    resolve_owners(checked.config, total_steps_known=True)
    if checked.own_file is not None:
        checked.own_file = engine_of(checked.config).complete(checked.own_file, checked.config, checked.total_steps)
    render.write(render.render(checked.config, checked.run_dir, checked.total_steps, checked.own_file), checked.run_dir)


def _close(run_dir: Path, status: str, failure: Failure | None) -> Ended:
    """Close the record; rank 0 may have written to it since."""
    record = Record.read(run_dir)
    reason = failure.message if failure else None
    if status == "preempted":
        reason = _stopped(run_dir, int(record.data.get("optimizer_steps", 0)))
    record.data.setdefault("artifacts", {})["logs"] = "logs"
    if failure is not None:
        reported = {
            "rank": failure.rank,
            "log": str(failure.log),
            "out_of_memory": failure.out_of_memory,
            **failure.facts,
        }
        record.data["failure"] = reported | (
            {"advice": memory_advice(rundir.read_config(run_dir), reported)} if failure.out_of_memory else {}
        )
    record.data["memory_prediction"] = _prediction(run_dir, status)
    if "assets" in record.data:
        record.data["assets"] = resolved_assets(rundir.read_config(run_dir))  # what was downloaded has a commit by now
    record.end_attempt("failed" if status == "interrupted" else status, reason)
    rundir.clear_requests(run_dir)
    for log in (run_dir / rundir.LOGS).glob("*.log"):
        redact_file(log)
    remove_converted(run_dir)
    shutil.rmtree(run_dir / "heartbeat", ignore_errors=True)
    return Ended(status, record, failure)


def _prediction(run_dir: Path, status: str) -> dict[str, Any] | None:
    """What the estimate said; a run that was over sooner waits a moment for it."""
    deadline = time.monotonic() + (PREDICTION_SECONDS if status == "completed" else 0.0)
    while True:
        found = rundir.memory_prediction(run_dir)
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _stopped(run_dir: Path, step: int) -> str:
    """Why and where a run was stopped, and from where it can be resumed when that is another step."""
    checkpoint = newest(run_dir, checksums=False)
    if checkpoint is None:
        return f"asked to stop after optimizer step {step}; there is no checkpoint"
    where = "" if checkpoint.step == step else f"; the newest checkpoint is {checkpoint.path.name}"
    return f"asked to stop after optimizer step {step}{where}"


def _artifacts(run_dir: Path) -> dict[str, str]:
    names = {
        "config": rundir.CONFIG_FILE,
        "accelerate_config": rundir.ACCELERATE_FILE,
        "deepspeed_config": rundir.DEEPSPEED_FILE,
        "command": rundir.COMMAND_FILE,
    }
    return {key: name for key, name in names.items() if (run_dir / name).exists()}


def typed_command() -> str:
    """The command as it was typed."""
    return shlex.join(["python", "-m", "runner", *sys.argv[1:]])
