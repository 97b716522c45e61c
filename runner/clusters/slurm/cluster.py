"""The Slurm cluster as one object."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from runner import render as files
from runner.clusters.cluster import Cluster
from runner.clusters.slurm import commands
from runner.clusters.slurm.job_script import NO_REQUEUE, SCRIPT, script
from runner.compose import Composed
from runner.config.clusters import foreign_keys
from runner.config.resolve import DEFAULT_CPU_RANKS
from runner.config.schema import RunConfig
from runner.errors import EXIT_COMPLETED, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PREEMPTED, Problem, RequestError
from runner.rundir.record import FILE, Record, write_atomically

if TYPE_CHECKING:
    from rich.console import Console

SUBMITTED = "cluster.json"
POLL_SECONDS = 2.0
OWNED = {  # options of sbatch that follow from keys of their own
    "nodes": "launcher.num_nodes",
    "ntasks-per-node": "launcher.num_processes",
    "cpus-per-task": "cluster.cpus_per_node",
    "gpus-per-node": "cluster.gpus_per_node",
    "mem": "cluster.memory_per_node",
    "output": "hydra.run.dir",
    "signal": "cluster.signal_seconds",
    "requeue": "cluster.max_requeues",
    **{name: f"cluster.{name}" for name in ("partition", "account", "qos", "constraint", "exclusive")},
    "time": "cluster.time_minutes",
}


class Slurm(Cluster):
    """Runs as batch jobs."""

    name = "slurm"

    def problems(self, config: RunConfig, explicit: Collection[str]) -> list[Problem]:
        """Slurm's commands, the partition, and a warning that leaves time."""
        cluster, found = config.cluster, foreign_keys(self.name, explicit)
        lacking = commands.missing()
        if lacking:
            why = f"{', '.join(lacking)}: no such command on PATH"
            return [*found, Problem("cluster", "slurm", why, "type the command on a login node of the cluster")]
        known = commands.partitions()
        if known is None:
            found.append(
                Problem("cluster", "slurm", "Slurm's controller does not answer (sinfo)", "see `scontrol ping`")
            )
        elif cluster.partition and cluster.partition not in known:
            fix = f"use cluster.partition={known[0]}" if known else ""
            found.append(
                Problem("cluster.partition", cluster.partition, f"there are the partitions {', '.join(known)}", fix)
            )
        if cluster.time_minutes and cluster.signal_seconds >= 60 * cluster.time_minutes:
            why = f"the warning would come before the job starts (cluster.time_minutes={cluster.time_minutes})"
            fix = f"use cluster.signal_seconds={max(1, 20 * cluster.time_minutes)}"
            found.append(Problem("cluster.signal_seconds", cluster.signal_seconds, why, fix))
        for option in sorted(OWNED.keys() & cluster.options.keys()):
            value, key = cluster.options[option], OWNED[option]
            found.append(Problem(f"cluster.options.{option}", value, f"{key} says it", f"use {key}"))
        if config.launcher.max_restarts and config.launcher.num_nodes > 1:
            why = "over several machines ranks that are started again meet the dead ones' addresses"
            fix = "leave it out: the job is requeued and resumed"
            found.append(Problem("launcher.max_restarts", config.launcher.max_restarts, why, fix))
        return found

    def resolve(self, config: RunConfig) -> RunConfig:
        """Device, ranks and threads of a node as asked for: this machine may be a login node."""
        resolved = config.model_copy(deep=True)
        cluster, launcher = resolved.cluster, resolved.launcher
        if launcher.device == "auto":
            launcher.device = "cuda" if cluster.gpus_per_node else "cpu"
        if launcher.num_processes == "auto":
            launcher.num_processes = cluster.gpus_per_node or DEFAULT_CPU_RANKS
        if launcher.omp_num_threads == "auto":
            launcher.omp_num_threads = max(1, (cluster.cpus_per_node or 1) // launcher.num_processes)
        if resolved.precision.name == "auto" and launcher.device == "cuda":
            resolved.precision.name = "bf16"  # the agent checks it on the node's own GPUs
        return resolved

    def render(self, config: RunConfig, run_dir: Path) -> dict[str, str]:
        """`job.sh`."""
        return {SCRIPT: script(config, run_dir)}

    @override
    def submit(self, composed: Composed, started: float) -> int:
        """Write the run folder and hand it to sbatch."""
        from dataclasses import replace

        from runner.launch.watch import console as terminal
        from runner.preflight.check import check
        from runner.single_run import announce

        console = terminal()
        checked = check(replace(composed, config=self.resolve(composed.config)), starting=False)
        announce(checked, console)
        run_dir = checked.run_dir
        rendered = files.render(checked.config, run_dir, checked.total_steps, checked.own_file)
        rendered.update(self.render(checked.config, run_dir))
        there = run_dir.exists()
        files.write(rendered, run_dir)
        try:
            return self._hand_over(run_dir, checked.config, {"overrides": composed.overrides}, console)
        except RequestError:
            for name in rendered:
                (run_dir / name).unlink(missing_ok=True)
            if not there:
                run_dir.rmdir()
            raise

    @override
    def resume(self, run_dir: Path, overrides: list[str], config: RunConfig, started: float) -> int:
        """Submit the run folder again; its agent resumes."""
        from runner.launch.watch import console as terminal
        from runner.resume import open_run

        open_run(run_dir)
        if overrides:
            raise RequestError(
                Problem(overrides[0], None, "a Slurm run is resumed as it is", "leave it out, or start a new run")
            )
        (run_dir / NO_REQUEUE).unlink(missing_ok=True)
        write_atomically(run_dir / SCRIPT, script(config, run_dir))
        return self._hand_over(run_dir, config, submitted(run_dir), terminal())

    def _hand_over(self, run_dir: Path, config: RunConfig, known: Mapping[str, Any], console: Console) -> int:
        job = commands.submit(run_dir / SCRIPT)
        write_atomically(run_dir / SUBMITTED, json.dumps({**known, "job": job, "ends": []}) + "\n")
        say = partial(console.print, highlight=False, markup=False)
        say(f"job        {job}")
        say(f"status     python -m runner status '{run_dir}'")
        return self._wait(run_dir, job, say) if config.cluster.wait else EXIT_COMPLETED

    def _wait(self, run_dir: Path, job: int, say: Callable[[str], None]) -> int:
        """Show the job's output until it has ended; returns the run's exit status."""
        shown, log = 0, run_dir / f"slurm-{job}.out"
        try:
            while True:
                ended = commands.job_state(job) is None
                text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
                if text[shown:].strip():
                    say(text[shown:].rstrip("\n"))
                shown = len(text)
                if ended:
                    break
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            say(f"the job goes on; end it with python -m runner stop '{run_dir}'")
            return EXIT_INTERRUPTED
        status = self.state(run_dir).split()[0]
        return {"completed": EXIT_COMPLETED, "preempted": EXIT_PREEMPTED}.get(status, EXIT_FAILED)

    def state(self, run_dir: Path) -> str:
        """From squeue, then from the record."""
        job = submitted(run_dir).get("job")
        slurm = commands.job_state(int(job)) if job else None
        status = str(Record.read(run_dir).data.get("status")) if (run_dir / FILE).exists() else None
        if slurm in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING", "SPECIAL_EXIT"):
            return f"queued (job {job})" if status is None else f"queued (job {job}; {status} so far)"
        if slurm is not None:
            return f"running (job {job}, {slurm.lower()})"
        if status in (None, "running"):
            return f"failed (job {job} has ended without an end of the run; see slurm-{job}.out)"
        return str(status)

    def stop(self, run_dir: Path, now: bool) -> str:
        """USR1 to the job's steps, or scancel."""
        job = int(submitted(run_dir)["job"])
        (run_dir / NO_REQUEUE).touch()
        state = commands.job_state(job)
        if state is None:
            return f"job {job} has ended already"
        if now or state != "RUNNING":
            commands.answer("scancel", str(job))
            return f"cancelled job {job}"
        commands.answer("scancel", "--signal=USR1", str(job))
        return f"asked job {job} to stop: it ends with a checkpoint at its next optimizer step or evaluation batch"


def submitted(run_dir: Path) -> dict[str, Any]:
    """What is known of the job; empty for a folder that was never submitted."""
    try:
        content: dict[str, Any] = json.loads((run_dir / SUBMITTED).read_text())
    except (OSError, ValueError):
        return {}
    return content
