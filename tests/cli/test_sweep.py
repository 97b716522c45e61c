"""Sweeps as they are typed: failed cells, going on after Ctrl-C and kill -9, one folder a cell, nothing shared but the
host.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import cli_environment

QUICK = (
    "dataset.max_train_rows=120",
    "dataset.max_validation_rows=16",
    "train.save_model=false",
    "train.micro_batch_size=4",
    "train.log_every=1",
    "scheduler.warmup_steps=0",
)


def sweep(
    cwd: Path, *arguments: str, timeout: float = 240, env: dict[str, str | None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m runner ARGUMENTS` in a folder, to its end."""
    command = [sys.executable, "-m", "runner", *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env=cli_environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )


def started(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start it and come back."""
    with open(cwd / "output.txt", "a") as output:
        streams: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(
            [sys.executable, "-m", "runner", *arguments], cwd=cwd, env=cli_environment(), text=True, **streams
        )


def records(cwd: Path) -> dict[str, dict[str, Any]]:
    """Records by the name of their run folder; trials of fit left out."""
    found = {path.parent.name: json.loads(path.read_text()) for path in cwd.glob("multirun/*/*/*/record.json")}
    return dict(sorted(found.items()))


def wait_for(condition: Any, seconds: float = 120) -> None:
    """Poll until it holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A sweep with a bad value, a cell that runs out of memory and two that are well; then the same again without the
    fault.
    """
    cwd = tmp_path_factory.mktemp("mixed")
    arguments = ("-m", "launcher=ddp", "train.max_steps=2,0,3,1", *QUICK)
    first = sweep(cwd, *arguments, env={"RUNNER_FAULT": "oom:forward:3"})
    (cwd / "first.json").write_text(json.dumps(records(cwd)))
    return cwd, first, sweep(cwd, *arguments)


def test_failed_cells_are_rows_and_not_the_end(mixed: tuple[Path, Any, Any]) -> None:
    cwd, first, _ = mixed
    kept = json.loads((cwd / "first.json").read_text())
    assert first.returncode == 3, first.stdout + first.stderr
    assert [record["status"] for record in kept.values()] == ["completed", "failed", "failed", "completed"]
    assert kept["1"]["reason"].startswith("train.max_steps=0: input should be greater than or equal to 1")
    assert "out of memory" in kept["2"]["reason"]
    assert kept["2"]["failure"]["out_of_memory"]
    table = first.stdout[first.stdout.index("job  status") :].splitlines()
    assert [" ".join(line.split()[:3]) for line in table[1:5]] == [
        "0 completed train.max_steps=2",
        "1 failed train.max_steps=0",
        "2 failed train.max_steps=3",
        "3 completed train.max_steps=1",
    ]
    assert "out of memory" in table[3]
    assert "greater than or equal to 1" in table[2]
    # reported when it happened: before the next cell was announced
    assert first.stdout.index("failed: rank ") < first.stdout.index("train.max_steps=1, about")


def test_the_same_sweep_again_redoes_only_what_failed(mixed: tuple[Path, Any, Any]) -> None:
    cwd, _, second = mixed
    assert second.returncode == 3  # the bad value is still bad
    assert "4 jobs, 2 already completed" in second.stdout
    assert "2 skipped" in second.stdout
    assert "1 completed" in second.stdout
    assert "1 failed" in second.stdout
    assert list(records(cwd)) == ["0", "1", "2", "2-2", "3"]
    assert records(cwd)["2-2"]["status"] == "completed"
    cell = records(cwd)["2-2"]["cell"]
    assert (cell["job"], cell["repeat"], cell["overrides"][:2]) == (2, 0, ["launcher=ddp", "train.max_steps=3"])
    assert cell["hash"] == records(cwd)["2"]["cell"]["hash"] != records(cwd)["0"]["cell"]["hash"]


def test_one_folder_a_job_whatever_the_number_of_ranks(mixed: tuple[Path, Any, Any]) -> None:
    """No folder of a rank, no configuration outside run folders; each run has its two rank logs."""
    cwd, _, _ = mixed
    folders = {path.parent for path in cwd.rglob("config.yaml")}
    assert folders == {path.parent for path in cwd.rglob("record.json") if "train.max_steps=0" not in path.read_text()}
    assert all(len(list((folder / "logs").glob("rank_*.log"))) == 2 for folder in folders)
    assert sorted(path.name for path in cwd.iterdir()) == ["first.json", "multirun"]


def test_nothing_leaks_from_cell_to_cell(tmp_path: Path, real_run: Any) -> None:
    """The second cell has its own precision, its losses are those of the run alone, and an edited file comes too
    late.
    """
    model = tmp_path / "conf" / "scheduler" / "mine.yaml"
    model.parent.mkdir(parents=True)
    model.write_text("name: constant\n")
    process = started(
        tmp_path, "-m", "launcher=ddp", "scheduler=mine", "precision=bf16,fp32", "train.max_steps=3", *QUICK
    )
    wait_for(lambda: list(tmp_path.glob("multirun/*/*/1/config.yaml")))
    model.write_text("name: linear\n")
    assert process.wait(timeout=240) == 0, (tmp_path / "output.txt").read_text()
    first, second = records(tmp_path).values()
    assert [first["observed"]["activation_dtype"], second["observed"]["activation_dtype"]] == ["bfloat16", "float32"]
    assert second["config"]["scheduler"]["name"] == "constant"
    alone = real_run(
        "launcher=ddp", "scheduler=constant", "precision=fp32", "train.max_steps=3", *QUICK, run_dir=tmp_path / "alone"
    )
    log = next(tmp_path.glob("multirun/*/*/1/metrics.jsonl")).read_text().splitlines()
    assert [json.loads(line)["loss"] for line in log] == [step["loss"] for step in alone.steps]


@pytest.mark.soak  # ten cells, stopped twice
def test_prepared_comparison_survives_ctrl_c_and_kill(tmp_path: Path) -> None:
    """`+sweep=ddp_vs_zero` stopped twice and typed again runs only what is missing, and gives both tables."""
    # The search is capped at 6 rows, so that each takes one trial.
    typed = ("+sweep=ddp_vs_zero", "train.max_steps=2", "fit.steps=2", "fit.max_micro_batch_size=6", *QUICK)
    process = started(tmp_path, *typed)
    wait_for(lambda: list(tmp_path.glob("multirun/*/*/1/logs/rank_0.log")))
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    done = {name for name, record in records(tmp_path).items() if record["status"] == "completed"}
    assert "0" in done
    assert len(done) < 5
    process = started(tmp_path, *typed)
    wait_for(lambda: list(tmp_path.glob("multirun/*/*/3/logs/rank_0.log")))
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=10)
    last = sweep(tmp_path, *typed)
    assert last.returncode == 0, last.stdout + last.stderr
    final = records(tmp_path)
    completed = [record["cell"]["hash"] for record in final.values() if record["status"] == "completed"]
    assert len(completed) == len(set(completed)) == 10  # five methods, twice; none was run again
    assert len({path.parent.parent for path in tmp_path.glob("multirun/*/*/*/record.json")}) == 1
    assert {final[f"{job}-largest"]["fit"]["largest_micro_batch"] for job in range(5)} == {6}
    report = sweep(tmp_path, "report")
    assert "Matched batch: global batch 8" in report.stdout
    assert "Each at its largest batch" in report.stdout
    for method in ("DDP", "ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3"):
        assert report.stdout.count(f"{method} ") >= 2


def test_two_sweeps_wait_for_each_other(tmp_path: Path) -> None:
    """A second sweep on the same device waits, says so, and then finds the first one's cell completed."""
    import fcntl

    from runner.config.schema import RunConfig
    from runner.launch.device_lock import _lock_files

    path = _lock_files(RunConfig.model_validate({"launcher": {"device": "cpu"}}))[0]
    with open(path, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        process = started(tmp_path, "-m", "launcher=ddp", "train.seed=1", "train.max_steps=1", *QUICK)
        wait_for(lambda: "waiting for cpu" in (tmp_path / "output.txt").read_text(), 30)
        assert not records(tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    assert "1 not run" in (tmp_path / "output.txt").read_text()
