"""The Spark cluster as one object."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from runner.clusters.local import Local
from runner.compose import Composed
from runner.config.clusters import foreign_keys
from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError

if TYPE_CHECKING:
    from runner.clusters.spark.session import Session
    from runner.execution import Launch
    from runner.launch.process_signals import Stopping
    from runner.preflight.check import Checked

NO_EFFECT = {  # keys of the launcher that the distributors leave no room for
    "launcher.start_method": "Spark's distributors start every rank as a new interpreter",
    "launcher.main_process_port": "Spark's distributors choose a free port",
}


class Spark(Local):
    """Ranks under a Spark driver. State and stop are those of a local run: the driver holds the record."""

    name = "spark"

    @override
    def problems(self, config: RunConfig, explicit: Collection[str]) -> list[Problem]:
        """Keys, pyspark, Java, and whether a standalone master listens."""
        found = foreign_keys(self.name, explicit)
        found += [Problem(key, None, why, "leave it out") for key, why in NO_EFFECT.items() if key in explicit]
        if config.launcher.max_restarts:
            why = "Spark's distributors do not start ranks again"
            found.append(
                Problem("launcher.max_restarts", config.launcher.max_restarts, why, "leave it out, and resume the run")
            )
        for key in ("spark.master", "spark.app.name"):
            if key in config.cluster.conf:
                fix = "use cluster.master" if key == "spark.master" else "leave it out"
                found.append(Problem(f"cluster.conf.{key}", config.cluster.conf[key], "the runner sets it", fix))
        found += _software()
        return found or _master(config)

    @override
    def submit(self, composed: Composed, started: float) -> int:
        """Run it from this process, which is the driver."""
        from runner.clusters.spark.session import open_session
        from runner.single_run import run_here

        session = open_session(composed.config)
        try:
            config = _with_device(session, composed.config)

            def join(checked: Checked | None, _problems: list[Problem], stop: Stopping) -> Launch:
                return _join(session, started, checked, stop, resumed=False)

            return run_here(replace(composed, config=config), started, join)
        finally:
            session.stop()

    @override
    def resume(self, run_dir: Path, overrides: list[str], config: RunConfig, started: float) -> int:
        """As `submit`."""
        from runner.clusters.spark.session import open_session
        from runner.single_run import resume_here

        session = open_session(config)
        try:
            return resume_here(run_dir, overrides, started, partial(_rejoin, session, started))
        finally:
            session.stop()


def _software() -> list[Problem]:
    if os.environ.get("SPARK_REMOTE"):
        why = "SPARK_REMOTE is set, and ranks cannot be watched over through Spark Connect"
        return [Problem("cluster", "spark", why, "unset SPARK_REMOTE and run on the driver")]
    if importlib.util.find_spec("pyspark") is None:
        fix = "pip install 'finetune-runner[spark]', or use cluster=local"
        return [Problem("cluster", "spark", "it needs pyspark, which is not installed", fix)]
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if not home else shutil.which("java", path=f"{home}/bin")
    if java is None:
        where = "no `java` on PATH" if not home else f"no bin/java in JAVA_HOME={home}"
        return [Problem("cluster", "spark", f"Spark needs Java 17 or newer ({where})", "install a Java runtime")]
    return []


def _master(config: RunConfig) -> list[Problem]:
    from runner.clusters.spark.session import master_problem

    problem = master_problem(config.cluster.master) if config.cluster.master else None
    return [problem] if problem else []


def _with_device(session: Session, config: RunConfig) -> RunConfig:
    """Where the device is left open: a GPU where Spark schedules them, else CPU."""
    resolved = config.model_copy(deep=True)
    if resolved.launcher.device == "auto" and not (session.is_local or config.cluster.local_mode):
        resolved.launcher.device = "cuda" if session.conf("spark.task.resource.gpu.amount") else "cpu"
    return resolved


def _rejoin(session: Session, started: float, checked: Checked, stop: Stopping) -> Launch:
    return _join(session, started, checked, stop, resumed=True)


def _join(session: Session, started: float, checked: Checked | None, stop: Stopping, resumed: bool) -> Launch:
    """Slots, executors, the run folder: whatever stands in the way before ranks start.

    Raises:
        RequestError: with everything that does.
    """
    from runner.clusters.nodes.head import writes_checkpoints
    from runner.clusters.spark.launch import SparkLaunch, distributor
    from runner.execution import OneMachine
    from runner.launch.watch import console

    if checked is None:
        return OneMachine()  # what its check found is raised
    config, run_dir = checked.config, checked.run_dir
    tasks = int(distributor(config, None, session.is_local).num_tasks)
    say = partial(console().print, highlight=False, markup=False)
    say(f"spark      {session.master} ({session.spark.sparkContext.applicationId})")
    probe = {"file": f".spark-{secrets.token_hex(4)}", "content": secrets.token_hex(16)}
    needs_shared = resumed or writes_checkpoints(config)
    if not (session.is_local or config.cluster.local_mode):
        session.wait_for_slots(tasks, config.cluster.join_timeout_seconds, lambda: stop.asked, say)
        problems = _executors(session, tasks, run_dir, config, probe, stop, needs_shared)
        if problems:
            raise RequestError(problems)
    return SparkLaunch(session, config, started, probe, needs_shared)


def _executors(
    session: Session,
    tasks: int,
    run_dir: Path,
    config: RunConfig,
    probe: dict[str, str],
    stop: Stopping,
    needs_shared: bool,
) -> list[Problem]:
    from runner.clusters.spark.session import Executors, executor_problems

    there, file = run_dir.is_dir(), run_dir / probe["file"]
    run_dir.mkdir(parents=True, exist_ok=True)
    file.write_text(probe["content"])
    try:
        answers = Executors(session, tasks).ask(
            {**probe, "file": str(file)}, config.cluster.join_timeout_seconds, lambda: stop.asked
        )
    finally:
        file.unlink()
        if not there:
            run_dir.rmdir()
    problems = executor_problems(answers)
    apart = sorted({answer["host"] for answer in answers if not answer["shared"]})
    if apart and needs_shared:
        why = f"executor {', '.join(apart)} does not share this folder, and a checkpoint needs every rank's part in one"
        fix = "use hydra.run.dir=DIR on a shared file system, or train without: checkpoint.on_preemption=false"
        problems.append(Problem("hydra.run.dir", run_dir, why, fix))
    return problems
