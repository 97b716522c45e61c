"""What MLflow is told of failed, killed and resumed runs and of sweeps, from run folders written here; no ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")

from runner.config.schema import RunConfig
from runner.trackers import tracker
from runner.trackers.sending import Sender


@pytest.fixture
def client(tmp_path, monkeypatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())


def write_run(folder: Path, status: str, losses: dict[int, float], **record: Any) -> Path:
    """A run folder with a record and logged steps."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "run_id": folder.name, "status": status, "reason": None, "started_at": "2026-11-30T10:00:00.000Z",
        "ended_at": "2026-11-30T10:01:00.000Z", "config": RunConfig().model_dump(mode="json"), "epochs": [],
        "attempts": [{"status": status}], "optimizer_steps": max(losses, default=0), **record,
    }  # fmt: skip
    (folder / "record.json").write_text(json.dumps(content))
    lines = [json.dumps({"step": step, "loss": loss, "elapsed_seconds": step}) for step, loss in losses.items()]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def send(folder: Path) -> str:
    """Send the folder as a process of its own would; the run's identity in MLflow."""
    sender = Sender(folder, "mlflow", tracker("mlflow"))
    sender.send()
    assert sender.sent.id is not None
    return sender.sent.id


@pytest.mark.parametrize(
    ("status", "expected"), [("failed", "FAILED"), ("preempted", "KILLED"), ("completed", "FINISHED")]
)
def test_the_end_is_told(client, tmp_path, status, expected):
    run = client.get_run(send(write_run(tmp_path / "run", status, {1: 0.5}, reason="rank 1: out of luck")))
    assert run.info.status == expected
    assert (run.data.tags["status"], run.data.tags["reason"]) == (status, "rank 1: out of luck")
    assert run.info.end_time - run.info.start_time == 60_000


def test_a_resume_continues_the_same_run_behind_its_checkpoint(client, tmp_path):
    folder = tmp_path / "run"
    first = send(write_run(folder, "preempted", {1: 0.9, 2: 0.8, 3: 0.7}))
    attempts = [{"status": "preempted"}, {"status": "completed", "resumed_from_step": 2}]
    again = send(write_run(folder, "completed", {1: 0.9, 2: 0.8, 3: 0.6, 4: 0.5}, attempts=attempts))
    assert again == first
    history = [(metric.step, metric.value) for metric in client.get_metric_history(first, "train/loss")]
    assert history == [(1, 0.9), (2, 0.8), (3, 0.7), (3, 0.6), (4, 0.5)]
    assert client.get_run(first).info.status == "FINISHED"


def test_what_was_sent_is_not_sent_again(client, tmp_path):
    folder = write_run(tmp_path / "run", "completed", {1: 0.9})
    assert send(folder) == send(folder)
    experiment = client.get_experiment_by_name("finetune-runner").experiment_id
    (run,) = client.search_runs([experiment])
    assert len(client.get_metric_history(run.info.run_id, "train/loss")) == 1


def test_a_run_whose_runner_was_killed_is_no_running_one(client, tmp_path):
    import os
    import platform

    dead = {"pid": 2**22 + 1, "host": platform.node(), "create_time": 1.0, "boot_id": ""}
    run = client.get_run(send(write_run(tmp_path / "run", "running", {1: 0.9}, ended_at=None, runner=dead)))
    assert run.info.status == "KILLED"
    assert not os.path.exists(f"/proc/{dead['pid']}")


def test_the_four_cells_of_a_sweep_have_one_parent(client, tmp_path):
    cells = [
        write_run(
            tmp_path / "sweep" / str(job),
            "failed" if job == 3 else "completed",
            {1: 0.5},
            cell={"sweep": "abc", "job": job},
        )
        for job in range(4)
    ]
    children = [client.get_run(send(cell)) for cell in cells]
    parents = {child.data.tags["mlflow.parentRunId"] for child in children}
    assert len(parents) == 1
    assert [child.info.run_name for child in children] == ["sweep/0", "sweep/1", "sweep/2", "sweep/3"]
    assert [child.info.status for child in children] == ["FINISHED", "FINISHED", "FINISHED", "FAILED"]
    parent = client.get_run(parents.pop())
    assert (parent.info.run_name, parent.info.status) == ("sweep", "FINISHED")
