"""`cluster=local`: the machine where the command is typed."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from pathlib import Path

from typing_extensions import override

from runner import rundir
from runner.clusters.cluster import Cluster
from runner.compose import Composed
from runner.config.clusters import foreign_keys
from runner.config.schema import RunConfig
from runner.errors import Problem
from runner.report.liveness import runner_liveness
from runner.rundir.record import Record


class Local(Cluster):
    """Ranks on this machine."""

    name = "local"

    @override
    def problems(self, config: RunConfig, explicit: Collection[str]) -> list[Problem]:
        """Keys of other clusters only."""
        return foreign_keys(self.name, explicit)

    def resolve(self, config: RunConfig) -> RunConfig:
        """Nothing: this machine runs it."""
        return config

    @override
    def render(self, config: RunConfig, run_dir: Path) -> dict[str, str]:
        """No files of its own."""
        return {}

    def submit(self, composed: Composed, started: float) -> int:
        """Run it here."""
        from runner.single_run import run_here

        return run_here(composed, started)

    @override
    def resume(self, run_dir: Path, overrides: list[str], config: RunConfig, started: float) -> int:
        """Resume it here."""
        from runner.single_run import resume_here

        return resume_here(run_dir, overrides, started)

    def state(self, run_dir: Path) -> str:
        """What the record says, and whether its runner still lives."""
        record = Record.read(run_dir).data
        status = str(record.get("status"))
        runner = record.get("runner", {})
        if status != "running":
            return status
        alive = runner_liveness(runner)
        if alive == "dead":
            return "failed (the runner was killed)"
        return f"running on {runner.get('host')} (process {runner.get('pid')})"

    def stop(self, run_dir: Path, now: bool) -> str:
        """By the run folder; at once: by a signal to the runner, which must be on this machine."""
        if not now:
            rundir.request_stop(run_dir)
            return "asked to stop: the run ends with a checkpoint at its next optimizer step or evaluation batch"
        runner = Record.read(run_dir).data.get("runner", {})
        if runner_liveness(runner) != "alive":
            return f"no runner to end on this machine (it runs on {runner.get('host')})"
        for _ in range(2):
            os.kill(int(runner["pid"]), signal.SIGINT)
        return f"ended process {runner['pid']}"
