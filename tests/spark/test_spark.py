"""`cluster=spark` on a real standalone Spark of two workers without a shared disk."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from tests.conftest import ROOT, Result, cli_environment, command
from tests.interrupting import LAUNCHERS, SHORT, logged, numbers
from tests.rigs.spark import MASTER, SparkRig

SECRET = "hf_" + "Zq9" * 11
ONE_EACH = ("launcher.num_processes=2", "launcher.omp_num_threads=1", "launcher.device=cpu")
APART = "checkpoint.on_preemption=false"  # the executors share no folder for checkpoints

# What a notebook does, as one program: the session is its own, runs follow each other in it.
NOTEBOOK = """
import json, os, sys
from pyspark.sql import SparkSession
import runner

conf = json.loads(sys.argv[1])
builder = SparkSession.builder.master(conf.pop("master"))
for key, value in conf.items():
    builder = builder.config(key, value)
builder.getOrCreate()
for line in sys.stdin:
    asked = json.loads(line)
    os.environ["RUNNER_FAULT"] = asked["fault"]
    try:
        answer = {"record": runner.run(asked["overrides"])}
    except runner.RunFailed as error:
        answer = {"failed": str(error), "record": error.record, "exit_status": error.exit_status}
    except runner.RequestError as error:
        answer = {"refused": str(error)}
    print("ANSWER " + json.dumps(answer), flush=True)
"""


class Notebook:
    """A running notebook: runs one after the other in one session."""

    def __init__(self, folder: Path) -> None:
        program = folder / "notebook.py"
        program.write_text(NOTEBOOK)
        self.log = open(folder / "notebook.log", "w+")  # noqa: SIM115
        conf = json.dumps({"master": MASTER, **dict(SparkRig.conf)})
        self.process = subprocess.Popen(
            [sys.executable, str(program), conf],
            cwd=ROOT,
            env=cli_environment(PYSPARK_PYTHON=sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def ask(self, *overrides: str, run_dir: Path, fault: str = "") -> None:
        """Start a run."""
        assert self.process.stdin is not None
        asked = {"overrides": [*overrides, "cluster=spark", f"hydra.run.dir={run_dir}"], "fault": fault}
        print(json.dumps(asked), file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """How it ended."""
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                content: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
                return content
            said.append(line)
        raise AssertionError("".join(said) + Path(self.log.name).read_text())


@pytest.fixture(scope="module")
def notebook(spark: SparkRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    started = Notebook(tmp_path_factory.mktemp("notebook"))
    yield started
    started.process.kill()
    started.process.wait()
    started.log.close()


def until_nothing_is_left(spark: SparkRig, seconds: float) -> None:
    limit = time.monotonic() + seconds
    while left := spark.left():
        assert time.monotonic() < limit, left
        time.sleep(0.5)


def own_project(folder: Path) -> tuple[str, ...]:
    """A recipe and rows of one's own, which no executor has."""
    (folder / "recipes").mkdir()
    shutil.copy(ROOT / "recipes" / "text_classification.py", folder / "recipes" / "mine.py")
    for split, rows in (("train", 64), ("validation", 20)):
        with open(folder / f"{split}.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["sentence1", "sentence2", "label"])
            table.writerows(
                [f"row {n} of {split}", f"half is {n // 2}", ("equal", "other")[n % 3 % 2]] for n in range(rows)
            )
    files = ("dataset=files", f"dataset.train={folder}/train.csv", f"dataset.validation={folder}/validation.csv")
    return (*files, "recipe.file=mine.py")


def test_the_installed_pyspark_is_one_that_was_checked() -> None:
    from runner.compat import spark_slots

    assert SpecifierSet(spark_slots.CHECKED["pyspark"]).contains(version("pyspark"))


def test_a_zero2_run_on_executors_without_a_shared_disk_equals_one_machine(
    spark: SparkRig, real_run: Any, tmp_path: Path
) -> None:
    """Rows, recipe and request travel there; record, logs, predictions and model come back; nothing stays."""
    project = (*own_project(tmp_path), *LAUNCHERS["zero2"], *SHORT[2:], *ONE_EACH, "train.save_model=true")
    run_dir = tmp_path / "run"
    seen: list[str] = []
    settings = [f"cluster.conf.{key}={value}" for key, value in spark.conf]
    place = (APART, "cluster=spark", f"cluster.master={MASTER}", *settings, f"hydra.run.dir={run_dir}")
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", *project, *place],
        cwd=tmp_path,
        env=cli_environment(HF_TOKEN=SECRET),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while process.poll() is None:
        seen += [line for number in (1, 2) for line in spark.nodes.processes(number)]
        time.sleep(0.5)
    text = process.communicate()[0]
    assert process.returncode == 0, text
    assert any("train.py" in line for line in seen)
    assert not [line for line in seen if SECRET in line]
    whole = command(*project, run_dir=tmp_path / "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.text
    there = Result(0, text, "", run_dir)
    assert numbers(there) == numbers(whole)
    record = there.record
    assert (record["status"], record["world_size"]) == ("completed", 2)
    assert record["hardware"]["host"] in ("node1", "node2")
    assert 0 < record["time_to_first_step_seconds"] < record["wall_seconds"]
    assert f"record     {run_dir}/record.json" in text
    for name in ("logs/rank_0.log", "logs/rank_1.log", "model/model.safetensors", "ds_config.json"):
        assert (run_dir / name).stat().st_size > 0, name
    assert {path.name for path in (run_dir / "predictions").iterdir()} == {
        path.name for path in (tmp_path / "whole" / "predictions").iterdir()
    }
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert not [path for path in files if b"/tmp/runner-" in path.read_bytes()]
    until_nothing_is_left(spark, 10)


def test_runs_from_a_notebook_one_good_one_failing_one_killed_one_stopped(
    notebook: Notebook, spark: SparkRig, real_run: Any, tmp_path: Path
) -> None:
    asked = (*LAUNCHERS["ddp"], *SHORT, *ONE_EACH)
    notebook.ask(*asked, run_dir=tmp_path / "shared")
    refused = notebook.answer()["refused"]
    assert "does not share this folder" in refused
    assert "checkpoint.on_preemption=false" in refused
    assert not (tmp_path / "shared").exists()
    notebook.ask(*asked, APART, run_dir=tmp_path / "ddp")
    record = notebook.answer()["record"]
    assert record["status"] == "completed"
    whole = real_run(*asked, run_dir=tmp_path / "whole")
    assert numbers(Result(0, "", "", tmp_path / "ddp")) == numbers(whole)
    notebook.ask(*asked, APART, run_dir=tmp_path / "raises", fault="error:forward:3:1")
    answer = notebook.answer()
    assert answer["failed"].startswith("failed: rank 1: InjectedFault")
    assert answer["record"]["failure"]["log"] == str(tmp_path / "raises" / "logs" / "rank_1.log")
    assert "InjectedFault" in (tmp_path / "raises" / "logs" / "rank_1.log").read_text()
    until_nothing_is_left(spark, 10)
    notebook.ask(*asked, APART, run_dir=tmp_path / "killed", fault="kill:forward:3:0")
    assert notebook.answer()["failed"].startswith("failed: rank 0 ended without an error: killed by SIGKILL")
    until_nothing_is_left(spark, 10)


def test_a_stopped_run_ends_and_a_killed_driver_leaves_nothing(
    notebook: Notebook, spark: SparkRig, tmp_path: Path
) -> None:
    asked = (*LAUNCHERS["zero2"], *SHORT, *ONE_EACH, APART, "train.epochs=60")
    notebook.ask(*asked, run_dir=tmp_path / "stopped", fault="sleep=0.2:forward:*")
    wait_for_step(tmp_path / "stopped", 3)
    stop = subprocess.run(
        [sys.executable, "-m", "runner", "stop", str(tmp_path / "stopped")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=cli_environment(),
    )
    assert stop.returncode == 0, stop.stderr
    answer = notebook.answer()
    assert answer["exit_status"] == 75
    assert answer["record"]["status"] == "preempted"
    until_nothing_is_left(spark, 10)
    notebook.ask(*asked, run_dir=tmp_path / "driverless", fault="sleep=0.2:forward:*")
    wait_for_step(tmp_path / "driverless", 3)
    os.kill(notebook.process.pid, signal.SIGKILL)
    until_nothing_is_left(spark, 60)


def wait_for_step(run_dir: Path, step: int) -> None:
    limit = time.monotonic() + 120
    while not any(line["step"] >= step for line in logged(run_dir)):
        assert time.monotonic() < limit, "the run did not come that far"
        time.sleep(0.1)
