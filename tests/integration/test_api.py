"""The verbs as functions: what they return, and that their errors are the command's own lines."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import runner
from runner import api
from tests.conftest import SMALL, command


def test_a_run_returns_its_record_and_gives_signals_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    options = (
        *SMALL,
        "launcher=ddp",
        "launcher.num_processes=1",
        "train.max_steps=2",
        f"hydra.run.dir={tmp_path / 'run'}",
    )
    record = runner.run(options)
    assert (record["status"], record["optimizer_steps"]) == ("completed", 2)
    assert record == json.loads((tmp_path / "run" / "record.json").read_text())
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
