"""`cluster=slurm` on a real Slurm of two nodes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result, command
from tests.interrupting import LAUNCHERS, SHORT, logged, numbers
from tests.rigs.nodes import NodesRig
from tests.rigs.slurm import SlurmRig

ONE_EACH = ("launcher.num_processes=1", "launcher.omp_num_threads=1", "cluster.cpus_per_node=1")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmRig]:
    folder = tmp_path_factory.mktemp("slurm")
    nodes = NodesRig(folder / "nodes")
    rig = SlurmRig(folder, nodes)
    yield rig
    rig.down()
    nodes.down()


def until(condition: Callable[[], bool], seconds: float, told: Callable[[], str]) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, told()
        time.sleep(0.2)


class Submitted:
    """A run under Slurm."""

    def __init__(self, slurm: SlurmRig, run_dir: Path, *arguments: str) -> None:
        self.slurm, self.run_dir = slurm, run_dir
        slow = {"RUNNER_FAULT": "sleep=0.7:forward:*"}  # time for what happens to a run in its middle
        self.answer = command(*arguments, "cluster=slurm", run_dir=run_dir, env={**slurm.environment, **slow})
        assert self.answer.returncode == 0, self.answer.text
        self.job = int(re.search(r"^job +(\d+)$", self.answer.stdout, re.M)[1])  # type: ignore[index]

    def status(self) -> str:
        return self.runner("status").stdout

    def runner(self, verb: str, *more: str) -> Result:
        import subprocess
        import sys

        from tests.conftest import ROOT, cli_environment

        words = [sys.executable, "-m", "runner", verb, str(self.run_dir), *more]
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=ROOT, env=cli_environment(**self.slurm.environment)
        )
        return Result(done.returncode, done.stdout, done.stderr, self.run_dir)

    def told(self) -> str:
        log = self.run_dir / f"slurm-{self.job}.out"
        return self.slurm.say("squeue") + (log.read_text()[-3000:] if log.exists() else "")

    def wait(self, word: str, seconds: float = 150) -> None:
        until(lambda: word in self.status(), seconds, lambda: self.status() + self.told())

    def wait_for_step(self, step: int) -> None:
        until(lambda: any(line["step"] >= step for line in logged(self.run_dir)), 120, self.told)

    def wait_until_requeued(self) -> None:
        until(lambda: self.slurm.say("squeue", "-h", "-j", str(self.job), "-o", "%T") == "PENDING", 60, self.told)

    @property
    def record(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.run_dir / "record.json").read_text())
        return content


def test_a_warned_run_on_two_nodes_is_requeued_and_equals_the_undisturbed_one(
    slurm: SlurmRig, real_run: Any, tmp_path: Path
) -> None:
    run = Submitted(slurm, tmp_path / "run", *LAUNCHERS["zero2"], *SHORT, *ONE_EACH, "launcher.num_nodes=2")
    run.wait_for_step(2)
    assert "running (job" in run.status()
    slurm.say("scancel", "--signal=USR1", str(run.job))  # as Slurm does `cluster.signal_seconds` before the limit
    run.wait_until_requeued()
    assert "queued (job" in run.status()
    assert run.record["status"] == "preempted"
    slurm.start_again_now(run.job)
    run.wait("completed")
    whole = real_run(
        *LAUNCHERS["zero2"],
        *SHORT,
        "launcher.num_processes=2",
        "launcher.omp_num_threads=1",
        run_dir=tmp_path / "whole",
    )
    assert numbers(Result(0, "", "", run.run_dir)) == numbers(whole)


def test_stop_ends_a_run_without_a_requeue_and_resume_submits_it_again(slurm: SlurmRig, tmp_path: Path) -> None:
    run = Submitted(slurm, tmp_path / "run", *LAUNCHERS["ddp"], *SHORT, *ONE_EACH, "train.epochs=40")
    run.wait_for_step(2)
    assert "asked job" in run.runner("stop").stdout
    run.wait("preempted")
    assert run.runner("stop").returncode == 2  # nothing is under way
    again = run.runner("resume")
    assert again.returncode == 0, again.text
    run.wait("running (job")
    assert "cancelled job" in run.runner("stop", "--now").stdout
    until(lambda: not slurm.say("squeue", "-h"), 60, run.told)


def test_a_warning_during_the_import_is_no_failure(slurm: SlurmRig, tmp_path: Path) -> None:
    run = Submitted(slurm, tmp_path / "run", *LAUNCHERS["ddp"], *SHORT, *ONE_EACH)
    until(lambda: "running" in run.status(), 30, run.told)
    slurm.say("scancel", "--signal=USR1", str(run.job))
    run.wait_until_requeued()
    slurm.start_again_now(run.job)
    run.wait("completed")


def test_a_run_that_waits_returns_its_status_and_wrong_requests_are_told_before(
    slurm: SlurmRig, tmp_path: Path
) -> None:
    options = (*LAUNCHERS["ddp"], *SHORT, *ONE_EACH, "train.max_steps=2", "cluster=slurm")
    done = command(*options, "cluster.wait=true", run_dir=tmp_path / "run", env=slurm.environment)
    assert (done.returncode, done.record["status"]) == (0, "completed"), done.text
    assert f"record     {tmp_path / 'run'}/record.json" in done.stdout
    wrong = command(*options, "cluster.partition=lwo", run_dir=tmp_path / "wrong", env=slurm.environment)
    assert wrong.returncode == 2
    assert (
        "error: cluster.partition=lwo: there are the partitions high, low; use cluster.partition=high" in wrong.stderr
    )
    foreign = command(*options, "cluster.head=a:1", run_dir=tmp_path / "wrong", env=slurm.environment)
    assert "error: cluster.head: cluster=slurm does not read this key" in foreign.stderr
    assert "choose its cluster with cluster=nodes" in foreign.stderr
    assert not (tmp_path / "wrong").exists()
    refused = command(*options, "cluster.options.begin=never", run_dir=tmp_path / "no", env=slurm.environment)
    assert refused.returncode == 2
    assert "error: cluster=slurm: sbatch refuses the job" in refused.stderr
    assert not (tmp_path / "no").exists()
    twice = command(*options, "cluster.options.nodes=9", run_dir=tmp_path / "no", env=slurm.environment)
    assert twice.stderr.strip() == "error: cluster.options.nodes=9: launcher.num_nodes says it; use launcher.num_nodes"
