"""The verbs as functions: what they return, and that their errors are the command's own lines."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import runner
from runner import api
from tests.conftest import SMALL, command
from tests.unit.report_records import record, write_run


def test_a_run_returns_its_record_and_gives_signals_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    options = (
        *SMALL,
        "launcher=ddp",
        "launcher.num_processes=1",
        "train.max_steps=2",
        f"hydra.run.dir={tmp_path / 'run'}",
    )
    found = runner.run(options)
    assert (found["status"], found["optimizer_steps"]) == ("completed", 2)
    assert found == json.loads((tmp_path / "run" / "record.json").read_text())
    assert signal.getsignal(signal.SIGINT) is before


def test_errors_are_the_commands_own_lines(tmp_path: Path) -> None:
    wrong = ("train.epochs=0", "train.epoch=3")
    with pytest.raises(runner.RequestError) as told:
        runner.run(wrong)
    said = command(*wrong, run_dir=tmp_path / "run")
    assert str(told.value) == said.stderr.strip()


def test_render_and_estimate_start_nothing(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    files = api.render(["zero_stage=3", f"hydra.run.dir={run_dir}"])
    assert json.loads(files["ds_config.json"])["zero_optimization"]["stage"] == 3
    assert not run_dir.exists()
    found = api.estimate(["zero_stage=2"])
    assert json.dumps(found) == json.dumps(
        json.loads(command("estimate", "zero_stage=2", "--json", run_dir=run_dir).stdout)
    )


def test_a_report_is_parsed_and_a_folder_that_is_not_there_is_the_commands_own_line(tmp_path: Path) -> None:
    """The command says it on standard error; a program gets it as an exception."""
    write_run(tmp_path / "runs" / "a", record("DDP", train_seconds=12.0))
    (table,) = api.report([str(tmp_path / "runs")])["tables"]
    assert [row["train_seconds"]["mean"] for row in table["rows"]] == [12.0]
    missing = str(tmp_path / "nowhere")
    with pytest.raises(runner.RequestError) as told:
        api.report([missing])
    said = command("report", missing, run_dir=tmp_path / "run")
    assert said.returncode == 2
    assert str(told.value) == said.stderr.strip()
    assert missing in str(told.value)


def test_fit_refuses_another_cluster(tmp_path: Path) -> None:
    with pytest.raises(runner.RequestError, match="fit tries what fits on this machine; use cluster=local"):
        api.fit(["cluster=spark", f"hydra.run.dir={tmp_path / 'fit'}"])
    assert not (tmp_path / "fit").exists()
