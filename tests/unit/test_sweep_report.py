"""A sweep's report follows the sweep's own list, wherever the records are; no rank is started here."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from report_records import merged, points, record, write_run
from rich.console import Console

from runner.cli.report import main
from runner.compose.multirun import ComposedCell, run_multirun
from runner.errors import RequestError
from runner.launch.watch import Stopping
from runner.sweep.session import Session


def _plan(arguments: list[str]) -> tuple[Path, list[Any]]:
    """The sweep's folder and jobs, as they are stored before the first one starts."""
    session = Session(arguments, Stopping(), Console(file=io.StringIO()))
    jobs: list[Any] = []

    def keep(cells: list[ComposedCell]) -> list[float | None]:
        jobs.extend(session._plan(cells))
        return [None for _ in cells]

    run_multirun(arguments, keep)
    assert session._sweep_dir is not None
    return session._sweep_dir, jobs


def _complete(jobs: list[Any], sweep: str) -> None:
    """Records as completed runs of these jobs would leave them."""
    for place, job in enumerate(jobs):
        config = job.checked.config.model_dump(mode="json")
        content = merged(record(train_seconds=10 + place % 3), {"cell": job.record_entry(sweep), "run_id": job.name})
        content |= {"config": config, "method": f"ZeRO-{config['zero']['stage']}"}
        write_run(job.run_dir, content, points())


@pytest.fixture(scope="module")
def second_sweep(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """3 cells × 3 repeats, killed after the 5th run, then typed again with one cell more; all of the rest completed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("sweeps"))
        yield _killed_and_resumed().absolute()


@pytest.fixture
def resumed(second_sweep: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The second sweep's folder, relative as it was typed, in the folder where it was."""
    monkeypatch.chdir(second_sweep.parents[2])
    return second_sweep.relative_to(second_sweep.parents[2])


def _killed_and_resumed() -> Path:
    typed = ["launcher=deepspeed", "sweep.repeats=3"]
    _, jobs = _plan(["zero_stage=0,1,2", "hydra.sweep.dir=multirun/first/sweep", *typed])
    _complete(jobs[:5], "first")
    folder, jobs = _plan(["zero_stage=0,1,2,3", "hydra.sweep.dir=multirun/second/sweep", *typed])
    _complete([job for job in jobs if not (job.cell.job < 3 and (job.repeat, job.cell.job) < (1, 2))], "second")
    return folder


@pytest.mark.parametrize("name", ["table", "markdown", "csv", "latex", "html", "json"])
def test_n_is_3_everywhere_after_a_kill_and_one_cell_more(
    resumed: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert len(list(resumed.glob("*/record.json"))) == 7  # five lie in the first sweep's folder
    assert main([str(resumed), "--format", name]) == 0
    text = capsys.readouterr().out
    assert "Missing: " not in text
    if name == "csv":
        assert [line["n"] for line in csv.DictReader(io.StringIO(text))] == ["3"] * 4
    elif name == "json":
        assert [row["n"] for row in json.loads(text)["tables"][0]["rows"]] == [3] * 4
    else:
        begin = {"table": "ZeRO-{}", "markdown": "| ZeRO-{}", "latex": "ZeRO-{}", "html": '<th scope="row">ZeRO-{}'}[
            name
        ]
        n = {"table": " 3 ", "markdown": "| 3 |", "latex": "& 3 &", "html": 'data-label="n" class="numeric">3<'}[name]
        for stage in range(4):
            start = begin.format(stage)
            where = text.index(start) if name == "html" else text.index(f"\n{start}")
            line = text[where + 1 : where + 600 if name == "html" else text.index("\n", where + 1)]
            assert n in line, line


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, jobs = _plan(["zero_stage=0,1", "launcher=deepspeed", "sweep.repeats=2", "train.micro_batch_size=4"])
    _complete(jobs[:3], "s")
    assert main([str(folder), "--format", "markdown"]) == 0
    text = capsys.readouterr().out
    assert "Missing: 1 of the 4 runs" in text
    assert "zero\\_stage=1, repeat 1 (not run)" in text
    assert "| 1 of 2 |" in text


def test_repeats_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, jobs = _plan(["zero_stage=0,1", "launcher=deepspeed", "sweep.repeats=3"])
    assert [(job.cell.job, job.repeat) for job in jobs] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_a_budget_beyond_the_machine_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError) as refused:
        _plan(["zero_stage=0,1,2", "launcher=deepspeed", "sweep.largest_batch=true", "fit.memory_budget=900TiB"])
    assert [problem.key for problem in refused.value.problems] == ["fit.memory_budget"]
    assert not (tmp_path / "multirun").exists()
