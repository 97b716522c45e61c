"""Trackers on real runs: what was logged, read back with each tool's own API."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SMALL, cli_environment, command

pytestmark = pytest.mark.soak  # real stores of four trackers: about a minute
NAMES = ("tensorboard", "mlflow", "wandb", "trackio")
pytest.importorskip("tensorboard")
pytest.importorskip("mlflow")
pytest.importorskip("wandb")
pytest.importorskip("trackio")
SECRETS = {"WANDB_API_KEY": "a1b2" * 10, "MLFLOW_TRACKING_TOKEN": "planted-Secret-0123456789"}
LONG = "x" * 600


@pytest.fixture(autouse=True)
def _file_store(monkeypatch):
    """MLflow wants to be asked for its plain files."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def stores(folder: Path) -> dict[str, str | None]:
    """Environment in which every tracker keeps what it is sent under a folder, with secrets planted."""
    return {
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(folder / "trackio"),
        **SECRETS,
    }


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """A short run with all trackers, its steps all logged."""
    folder = tmp_path_factory.mktemp("tracked")
    result = command(
        "tracker=[tensorboard,mlflow,wandb,trackio]", "tracker.project=mine", "tracker.tags.team=blue", *SMALL,
        f"note={LONG}",
        "launcher=ddp", "train.max_steps=6", "train.log_every=1", "tracker.wait_seconds=60",
        run_dir=folder / "run", cwd=folder, env=stores(folder),
    )  # fmt: skip
    assert result.returncode == 0, result.text
    return result, folder


def logged(result) -> list[float]:
    """The losses in the run's own log, by step."""
    return [line["loss"] for line in result.steps]


def test_every_tracker_was_sent_everything(completed):
    result, _ = completed
    assert "warning: tracker" not in result.text
    for name in NAMES:
        sent = json.loads((result.run_dir / "tracking" / f"{name}.json").read_text())
        assert (sent["status"], sent["step"], sent["epochs"]) == ("completed", 6, 1), name


def test_tensorboard_has_the_steps_and_the_configuration(completed):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result, _ = completed
    events = EventAccumulator(str(result.run_dir / "tensorboard"))
    events.Reload()
    points = events.Scalars("train/loss")
    assert [point.step for point in points] == [1, 2, 3, 4, 5, 6]
    assert [point.value for point in points] == pytest.approx(logged(result))
    assert events.Scalars("eval/accuracy")[0].value == pytest.approx(result.record["metrics"]["accuracy"])
    assert {"configuration", "summary"} <= set(events.Tags()["tensors"])


def test_mlflow_has_the_run_with_its_end(completed):
    from mlflow import MlflowClient

    result, folder = completed
    client = MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("mine")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    history = sorted(client.get_metric_history(run.info.run_id, "train/loss"), key=lambda metric: metric.step)
    assert [metric.value for metric in history] == pytest.approx(logged(result))
    assert run.data.params["optimizer.betas"] == "[0.9, 0.999]"
    assert run.data.params["train.global_batch_size"] == "null"
    assert len(run.data.params["note"]) == 500
    assert run.data.tags["shortened_parameters"] == "note"
    assert run.data.tags["team"] == "blue"
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"record.json", "config.yaml"}


def test_trackio_has_the_steps(completed):
    result, folder = completed
    code = (
        "import json, trackio; run = trackio.Api().runs('mine')[0]; "
        "print(json.dumps([run.name, trackio.SQLiteStorage.get_logs('mine', run.name)], default=str))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        env=cli_environment(TRACKIO_DIR=str(folder / "trackio")),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    name, history = json.loads(done.stdout.splitlines()[-1])
    assert name == "run"
    losses = [line["train/loss"] for line in history if line.get("train/loss") is not None]
    assert losses == pytest.approx(logged(result))


def test_wandb_has_the_steps(completed):
    from wandb.proto import wandb_internal_pb2

    result, _ = completed
    (path,) = (result.run_dir / "wandb").glob("offline-run-*/*.wandb")
    losses, code = [], None
    for data in _wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        values = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        losses += [values["train/loss"]] if "train/loss" in values else []
        code = record.exit.exit_code if record.HasField("exit") else code
    assert losses == pytest.approx(logged(result))
    assert code == 0


def _wandb_records(content: bytes) -> Iterator[bytes]:
    """Records of a .wandb file, which is a LevelDB log behind seven bytes: blocks of 32 KiB; before each piece its
    checksum (4 bytes), length (2) and kind (whole 1, first 2, middle 3, last 4)."""
    at, whole = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def test_no_planted_secret_is_in_any_file(completed):
    _, folder = completed
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [name for name, value in SECRETS.items() if value.encode() in content], path


def test_ranks_do_not_get_the_trackers_credentials(monkeypatch):
    from runner.trackers import credential_variables

    assert {"WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"} <= credential_variables()
    assert "HF_TOKEN" not in credential_variables()  # ranks download with it


@pytest.mark.soak
def test_a_server_that_is_down_delays_nothing_and_is_caught_up_with(tmp_path, completed):
    """No server at the address: one warning, a completed run in time; `track` sends it when there is a store."""
    from mlflow import MlflowClient

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = stores(tmp_path) | {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
    result = command(
        "tracker=mlflow", *SMALL, "launcher=ddp", "train.max_steps=4", run_dir=tmp_path / "run", cwd=tmp_path, env=env
    )
    assert result.returncode == 0, result.text
    assert result.text.count("warning: tracker=mlflow") <= 1
    ended = time.time()
    closed = (result.run_dir / "record.json").stat().st_mtime
    assert ended - closed < 3.0  # the wait for trackers is 0.8 s; the rest is the result's table
    _end_side_process(result.run_dir)
    sent = subprocess.run(
        [sys.executable, "-m", "runner", "track", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env=cli_environment(**stores(tmp_path)),
    )  # fmt: skip
    assert sent.returncode == 0, sent.stdout + sent.stderr
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("finetune-runner")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"


def _end_side_process(run_dir: Path) -> None:
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if "runner.trackers.side_process" in (words := process.info["cmdline"] or []) and str(run_dir) in words:
            os.kill(process.pid, 9)
            process.wait(timeout=5)
