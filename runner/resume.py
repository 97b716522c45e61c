"""Resume an interrupted run: what stands in its way, from which checkpoint, and then the same way as the first time."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from runner import render, rundir
from runner.checkpoint import compatibility, folders, retention
from runner.checkpoint.folders import Checkpoint
from runner.compose.changes import with_changes
from runner.config import plan
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.errors import Problem, RequestError
from runner.execution import Request, typed_command
from runner.preflight.assets import check_assets
from runner.preflight.changed_data import changed_data
from runner.preflight.check import Checked, known_total_steps, stop_on_errors
from runner.preflight.dataset import check_data
from runner.preflight.devices import check_devices, check_precision
from runner.preflight.orphaned_processes import is_rank, lives
from runner.preflight.software import check_software
from runner.recipe import load_recipe
from runner.report.liveness import runner_liveness
from runner.rundir.heartbeat import HEARTBEATS, read_heartbeats
from runner.rundir.record import FILE, METRICS_FILE, Record, now
from runner.rundir.trusted import check_code, checked_record, rendered_json

RECENT_SECONDS = 120.0  # a sign of life on another machine younger than this means that the run continues there
ORPHANS_SECONDS = 10.0


@dataclass
class Found:
    """An interrupted run as it lies on disk, with the changes asked for.

    Attributes:
        chosen: the newest whole checkpoint; None: from the start.
        damaged: newer ones, and what is wrong with them.
    """

    run_dir: Path
    record: Record
    config: RunConfig
    changes: dict[str, Any]
    chosen: Checkpoint | None
    damaged: list[tuple[Checkpoint, str]]
    notices: list[Problem]


def open_run(run_dir: Path) -> Record:
    """The record of a run that may be resumed.

    Raises:
        RequestError: no run, a run that is completed, or one that is still running.
    """
    name = str(run_dir)
    if not (run_dir / FILE).exists():
        raise RequestError(Problem("RUN_DIR", name, "there is no record.json in it", "give the folder of a run"))
    record = Record(run_dir)
    record.data = checked_record(run_dir)
    status = record.data["status"]
    if status == "completed":
        why = "this run is completed, nothing is left to do"
        further = f"for more epochs start a new run from its weights: python -m runner model.path={run_dir / 'model'}"
        fix = f"{further} train.epochs=N" if (run_dir / "model").is_dir() else "start a new run"
        raise RequestError(Problem("RUN_DIR", name, why, fix))
    if status == "running":
        _refuse_living(run_dir, record)
    return record


def _refuse_living(run_dir: Path, record: Record) -> None:
    runner = record.data.get("runner", {})
    alive = runner_liveness(runner)
    if alive == "alive":
        raise RequestError(
            Problem(
                "RUN_DIR",
                run_dir,
                f"this run is still going on (process {runner.get('pid')})",
                "wait for its end, or end it with Ctrl-C or SIGTERM",
            )
        )
    if alive == "unknown":
        ages = [time.time() - path.stat().st_mtime for path in (run_dir / "heartbeat").glob("*")]
        if ages and min(ages) < RECENT_SECONDS:
            why = f"this run gave a sign of life {min(ages):.0f} s ago on {runner.get('host')}"
            raise RequestError(
                Problem("RUN_DIR", run_dir, why, f"if it has ended there, try again in {RECENT_SECONDS:.0f} s")
            )


def find(run_dir: Path, record: Record, arguments: list[str], trusted: bool = False) -> Found:
    """Look at the configuration, the changes and the checkpoints; nothing is written yet.

    Args:
        trusted: whether code that the folder names may run (see `check_code`).

    Raises:
        RequestError: with everything that stands in the way.
    """
    before = config_of(run_dir)
    after, typed = with_changes(before, arguments)
    check_code(run_dir, record.data, after, trusted)
    rendered_json(run_dir, rundir.DEEPSPEED_FILE)
    chosen, damaged = _assess(run_dir)
    rows = record.data.get("data", {}).get("train", {}).get("rows") or before.dataset.rows.get("train")
    problems = [] if chosen is None else engine_of(after).checkpoint_problems(after, chosen.manifest.world_size)
    problems += compatibility.keep_global_batch(before, after, typed)
    problems += compatibility.check_changes(before, after, rows, chosen.step if chosen else 0)
    recipe = load_recipe(after)
    here = (
        check_precision(after)
        + check_devices(after)
        + check_software(after, recipe, None)
        + engine_of(after).start_problems(after)
        + check_data(after, recipe)
        + changed_data(after, record.data.get("data_files"))
    )
    problems += check_assets(after) + [problem for problem in here if problem.severity == "error"]
    stop_on_errors(problems)
    return Found(run_dir, record, after, compatibility.changed(before, after), chosen, damaged, problems)


def config_of(run_dir: Path) -> RunConfig:
    """The configuration of a run folder; where it cannot be read, a RequestError says so."""
    try:
        return rundir.read_config(run_dir)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise RequestError(
            Problem(
                "RUN_DIR", run_dir, f"its config.yaml cannot be read ({str(error).splitlines()[0]})", "start a new run"
            )
        ) from None


def _assess(run_dir: Path) -> tuple[Checkpoint | None, list[tuple[Checkpoint, str]]]:
    damaged: list[tuple[Checkpoint, str]] = []
    for item in folders.checkpoints(run_dir):
        wrong = item.damage()
        if wrong is None:
            return item, damaged
        damaged.append((item, wrong))
    return None, damaged


def prepare(
    found: Found,
    arguments: list[str],
    started_monotonic: float,
    say: Callable[[str], None],
    stop_asked: Callable[[], bool] = lambda: False,
) -> Request:
    """Make the folder ready for another attempt; returns what `run_attempt` needs.

    Raises:
        ConversionStopped: when `stop_asked` turned true while a checkpoint was converted; the next resume begins anew.
    """
    run_dir, config = found.run_dir, found.config
    _close_killed(found)
    _tidy(found, say)
    if found.chosen is not None:
        log = run_dir / rundir.LOGS / "conversion.log"
        for item in _to_load(found, found.chosen):
            engine_of(config).convert_checkpoint(item, plan.world_size(config), log, say, stop_asked)
    recipe = load_recipe(config)
    total = _total_steps(found)
    _render_anew(run_dir, config)
    _open_attempt(found, started_monotonic)
    own_file = engine_of(config).file_of_run(run_dir) if config.launcher.config_file else None
    return Request(Checked(config, run_dir, recipe, found.notices, own_file, total), arguments, started_monotonic)


def _to_load(found: Found, chosen: Checkpoint) -> list[Checkpoint]:
    """Checkpoints that the ranks will load: the one that is taken up, and at the end the best so far."""
    config = found.config
    best = retention.best(found.run_dir, config.recipe.greater_is_better) if config.train.load_best_at_end else None
    return [chosen] if best is None or best == chosen else [chosen, best]


def _total_steps(found: Found) -> int | None:
    planned = found.record.data.get("planned_optimizer_steps")
    rows = found.record.data.get("data", {}).get("train", {}).get("rows")
    if planned and rows:
        return plan.total_steps(rows, found.config)
    return known_total_steps(found.config, load_recipe(found.config))


def wait_for_orphans(run_dir: Path, say: Callable[[str], None]) -> None:
    """Ranks of a runner that was killed end by themselves; say so when they do not at once, refuse
    when they never do.
    """
    until, reported = time.monotonic() + ORPHANS_SECONDS, False
    while orphans := _orphans(run_dir):
        if not reported:
            say(f"processes of the last attempt are still ending: {', '.join(map(str, orphans))}")
            reported = True
        if time.monotonic() > until:
            numbers = " ".join(map(str, orphans))
            raise RequestError(
                Problem(
                    "RUN_DIR",
                    run_dir,
                    f"processes of the last attempt are still there: {numbers}",
                    f"end them with kill -9 {numbers}",
                )
            )
        time.sleep(0.1)


def _orphans(run_dir: Path) -> list[int]:
    """Process ids in the heartbeats that still belong to ranks: alive, and started before the heartbeat's last word."""
    found = []
    for rank, beat in read_heartbeats(run_dir).items():
        with contextlib.suppress(OSError, KeyError, TypeError, AttributeError):
            if (
                beat.get("host") == os.uname().nodename
                and is_rank(beat["pid"])
                and lives(beat["pid"], (run_dir / HEARTBEATS / f"rank_{rank}.json").stat().st_mtime)
            ):
                found.append(beat["pid"])
    return found


def _tidy(found: Found, say: Callable[[str], None]) -> None:
    """Remove what the last attempt left, set damaged checkpoints aside, and say where the run resumes."""
    rundir.clear_requests(found.run_dir)
    for name in ("heartbeat", "errors"):
        shutil.rmtree(found.run_dir / name, ignore_errors=True)
    folders.remove_torn(found.run_dir)
    folders.remove_converted(found.run_dir)
    for item, wrong in found.damaged:
        say(folders.set_aside(item, wrong))
    if found.chosen is None:
        say("there is no checkpoint: the run begins again from its start")
    else:
        say(f"going on from {found.chosen.path.name}")


def _render_anew(run_dir: Path, config: RunConfig) -> None:
    """The files of the run, for the changes and for where the folder lies now."""
    fresh = render.common_files(config, run_dir) | engine_of(config).rerender(config, run_dir)
    render.write(fresh, run_dir)


def _open_attempt(found: Found, started_monotonic: float) -> None:
    """The same record, with one attempt more; an attempt whose runner was killed is closed first."""
    record, data = found.record, found.record.data
    failure = data.pop("failure", None)
    if failure is not None:
        data["attempts"][-1]["failure"] = failure
    data.setdefault("runner", {}).update(rundir.this_process(), started_monotonic=started_monotonic)
    attempt = {
        "started_at": now(),
        "status": "running",
        "command": typed_command(),
        "changes": found.changes,
        "resumed_from_step": found.chosen.step if found.chosen else 0,
    }
    data["attempts"].append(attempt)
    data.update(
        status="running",
        reason=None,
        ended_at=None,
        config=found.config.model_dump(mode="json"),
        world_size=plan.world_size(found.config),
        method=plan.method(found.config),
        data_parallel_size=plan.data_parallel_size(found.config),
    )
    data.update(
        micro_batch_size=found.config.train.micro_batch_size,
        gradient_accumulation_steps=found.config.train.gradient_accumulation_steps,
    )
    if found.chosen is None:
        data.update(epochs=[], validations=[], metrics={}, best=None, optimizer_steps=0, phases={})
    record.write()


def _close_killed(found: Found) -> None:
    """An attempt that never said how it ended: its runner was killed. Its length is not known exactly; up to its last
    write it is, so this comes before anything is removed from the folder or written to it.
    """
    run_dir, data = found.run_dir, found.record.data
    attempts = data.setdefault("attempts", [])
    if not attempts or attempts[-1].get("status") != "running":
        return
    # Its last word, wherever it was written: the record may be as old as the last epoch.
    written = [
        run_dir / FILE,
        run_dir / METRICS_FILE,
        *(run_dir / HEARTBEATS).glob("*"),
        *(run_dir / folders.CHECKPOINTS).glob("*/*"),
    ]
    ended = max(path.stat().st_mtime for path in written if path.exists())
    seconds = sum(data.get("phases", {}).values()) - sum(
        attempt.get("wall_seconds") or 0.0 for attempt in attempts[:-1]
    )
    text = datetime.fromtimestamp(ended, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    attempts[-1].update(
        status="failed",
        reason="the runner was killed",
        ended_at=text,
        wall_seconds=max(0.0, seconds, _lived_seconds(attempts[-1], text)),
    )
    found.record.update(status="failed", reason="the runner was killed", ended_at=text)


def _lived_seconds(attempt: dict[str, Any], ended: str) -> float:
    """Seconds from an attempt's start to an ISO 8601 time."""
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(attempt["started_at"])).total_seconds()
