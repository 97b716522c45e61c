"""Runs that are killed, signalled, hung, cramped or crowded, as a user starts them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner.errors import RequestError
from tests.conftest import Result, command
from tests.interrupting import LAUNCHERS, SHORT, Started, checkpoint_names, numbers

TOKEN = "hf_" + "Xy7" * 12
OTHER_SECRET = "planted-secret-0123456789"


@pytest.fixture(scope="module")
def whole(real_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Result:
    done: Result = real_run(*LAUNCHERS["zero2"], *SHORT, run_dir=tmp_path_factory.mktemp("whole") / "run")
    return done


def test_a_killed_runner_takes_its_ranks_along_and_the_run_goes_on(whole: Result, tmp_path: Path) -> None:
    """What is still going on is not resumed; a folder with odd characters in its name."""
    run_dir = tmp_path / "a run, of = ünïcode 试"
    started = Started(
        *LAUNCHERS["zero2"], *SHORT, "checkpoint.every_steps=2", "train.dataloader_workers=1", run_dir=run_dir
    )
    assert started.wait_for_step(3)
    refused = command("resume", str(run_dir), run_dir=run_dir)
    started.signal(signal.SIGKILL)
    started.end()
    assert refused.returncode == 2
    assert "still going on" in refused.text
    assert started.gone_within(10)
    assert "failed" in command("report", str(run_dir), run_dir=run_dir).text
    resumed = command("resume", str(run_dir), run_dir=run_dir)
    assert resumed.returncode == 0, resumed.text
    assert numbers(resumed) == numbers(whole)
    assert resumed.record["attempts"][0]["reason"] == "the runner was killed"


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.soak)])
def test_a_signal_to_every_process_checkpoints_and_the_run_goes_on(
    number: signal.Signals, whole: Result, tmp_path: Path
) -> None:
    """Slurm signals all processes of a job, not only the first; a closed terminal sends SIGHUP."""
    started = Started(*LAUNCHERS["zero2"], *SHORT, run_dir=tmp_path / "run")
    assert started.wait_for_step(2)
    started.signal(number, everyone=True)
    ended = started.end()
    assert ended.returncode == 75, ended.text
    assert ended.record["status"] == "preempted", ended.text
    assert started.gone_within(10)
    step = ended.record["optimizer_steps"]
    assert checkpoint_names(tmp_path / "run") == [f"step_{step:08d}"]
    resumed = command("resume", str(tmp_path / "run"), run_dir=tmp_path / "run")
    assert resumed.returncode == 0, resumed.text
    assert numbers(resumed) == numbers(whole), resumed.text


def test_a_warning_while_libraries_are_imported_ends_as_preempted_and_old_requests_are_cleared(tmp_path: Path) -> None:
    """Slurm's USR1 goes to every process of a step, also to one that has no handler yet: it ended such a run with 138.

    A stop that a killed runner left behind must not end the next attempt.
    """
    run_dir = tmp_path / "run"
    started = Started(*LAUNCHERS["ddp"], *SHORT, "train.max_steps=2", run_dir=run_dir)
    assert started.wait_until(lambda: bool(psutil.Process(started.process.pid).children()))
    started.signal(signal.SIGUSR1, everyone=True)
    ended = started.end()
    assert ended.returncode == 75, ended.text
    assert (ended.record["status"], ended.record["optimizer_steps"]) == ("preempted", 0)
    assert started.gone_within(10)
    (run_dir / "stop").touch()
    (run_dir / "stop_at_1").touch()
    resumed = command("resume", str(run_dir), run_dir=run_dir)
    assert (resumed.returncode, resumed.record["optimizer_steps"]) == (0, 2), resumed.text


@pytest.mark.parametrize("launcher", ["ddp", pytest.param("zero3", marks=pytest.mark.soak)])
def test_sigterm_in_an_evaluation_checkpoints_and_the_evaluation_is_done_again(
    launcher: str, real_run: Any, tmp_path: Path
) -> None:
    """Under DDP ranks may be batches apart in an evaluation, under ZeRO-3 every batch needs all ranks.

    Epoch 1 ends with step 7.
    """
    options = (*LAUNCHERS[launcher], *SHORT, "train.eval_micro_batch_size=2")
    undisturbed = real_run(*options, run_dir=tmp_path / "undisturbed")
    started = Started(*options, run_dir=tmp_path / "run", env={"RUNNER_FAULT": "sleep=4:evaluation:8"})
    assert started.wait_for_step(7)
    started.signal(signal.SIGTERM)
    ended = started.end()
    assert ended.returncode == 75, ended.text
    assert (ended.record["status"], ended.record["optimizer_steps"], ended.record["epochs"]) == ("preempted", 7, [])
    assert checkpoint_names(tmp_path / "run") == ["step_00000007"]
    assert started.gone_within(10)
    resumed = real_run.resume(tmp_path / "run")
    assert resumed.returncode == 0, resumed.text
    assert numbers(resumed) == numbers(undisturbed)


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(each, marks=pytest.mark.soak) for each in (signal.SIGINT, signal.SIGUSR1))],
)
def test_a_signal_after_the_record_is_closed_changes_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """The runner is still closing its host and printing the table: the run is completed, and its
    exit status says so.
    """
    run_dir = tmp_path / "run"
    started = Started(*LAUNCHERS["ddp"], *SHORT, "train.max_steps=2", run_dir=run_dir)
    if started.wait_until(
        lambda: (
            (run_dir / "record.json").exists()
            and json.loads((run_dir / "record.json").read_text())["status"] == "completed"
        )
    ):
        while started.process.poll() is None:
            started.signal(number)
            time.sleep(0.005)
    ended = started.end()
    assert ended.returncode == 0, ended.text
    assert f"record     {run_dir}/record.json" in ended.stdout.splitlines()


@pytest.mark.soak
def test_a_signal_after_the_last_cell_is_done_changes_nothing(tmp_path: Path) -> None:
    """Nothing of the sweep is left to resume."""
    sweep, records = tmp_path / "sweep", tmp_path / "sweep/1/record.json"
    started = Started(
        "-m",
        *LAUNCHERS["ddp"],
        *SHORT,
        "train.max_steps=1,2",
        f'hydra.sweep.dir="{sweep}"',
        run_dir=tmp_path / "unused",
    )
    if started.wait_until(lambda: records.exists() and json.loads(records.read_text())["status"] == "completed"):
        started.signal(signal.SIGTERM)
    ended = started.end()
    assert ended.returncode == 0, ended.text
    assert "sweep      2 completed" in ended.stdout.splitlines()


def test_a_run_goes_on_when_nobody_reads_its_output_any_more(whole: Result, tmp_path: Path) -> None:
    """`| head`, a dead tee, an ssh that closed its pipe."""
    started = Started(*LAUNCHERS["zero2"], *SHORT, "checkpoint.every_steps=2", run_dir=tmp_path / "run")
    assert started.wait_for_step(1)
    assert started.process.stdout is not None
    started.process.stdout.close()
    assert started.process.wait(60) == 0
    ended = Result(0, "", "", tmp_path / "run")
    assert ended.record["status"] == "completed"
    assert numbers(ended) == numbers(whole)


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    """The ranks hang, so that no step follows the first one."""
    started = Started(*LAUNCHERS["ddp"], *SHORT, run_dir=tmp_path / "run", env={"RUNNER_FAULT": "hang:backward:3"})
    assert started.wait_for_step(2)
    started.signal(signal.SIGINT)
    time.sleep(0.5)
    assert started.process.poll() is None
    began = started.signal(signal.SIGINT)
    ended = started.end()
    assert time.monotonic() - began < 10
    assert ended.returncode == 130
    assert ended.record["status"] == "failed"
    assert started.gone_within(10)


def test_a_killed_rank_ends_the_run_within_ten_seconds(real_run: Any, tmp_path: Path) -> None:
    began = time.monotonic()
    done = real_run(
        *LAUNCHERS["zero2"], *SHORT, run_dir=tmp_path / "run", environment={"RUNNER_FAULT": "kill:backward:5:1"}
    )
    assert done.returncode == 1
    assert done.record["reason"].startswith("rank 1 ")
    assert "killed by SIGKILL" in done.record["reason"]
    assert time.monotonic() - began < 60  # the whole run; on a free machine about 5 s


@pytest.mark.parametrize("launcher", [pytest.param("ddp", marks=pytest.mark.soak), "zero3"])
def test_a_hung_rank_is_ended_with_stacks(launcher: str, real_run: Any, tmp_path: Path) -> None:
    fault = {"RUNNER_FAULT": "hang:backward:5:1"}
    done = real_run(
        *LAUNCHERS[launcher], *SHORT, "launcher.hang_timeout_seconds=3", run_dir=tmp_path / "run", environment=fault
    )
    assert done.returncode == 1
    assert "no progress for 3 s" in done.record["reason"]
    for rank in (0, 1):
        assert "most recent call first" in (tmp_path / f"run/logs/rank_{rank}.log").read_text()
    assert "in _strike" in (tmp_path / "run/logs/rank_1.log").read_text()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB: space for one checkpoint of 3.6 MiB, not for two."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid() != 0
        or shutil.which("mount") is None
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)], check=False).returncode
    ):
        pytest.skip("no small file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


def test_a_full_disk_costs_a_checkpoint_not_the_run(small_disk: Path, real_run: Any, tmp_path: Path) -> None:
    """Refused before training; without that check reported when it happens, the earlier checkpoint stays;
    with space it continues.
    """
    with pytest.raises(RequestError, match=r"3 checkpoints of about .* free are 6.0 MiB"):
        real_run(*LAUNCHERS["ddp"], *SHORT, "checkpoint.every_steps=4", run_dir=small_disk / "run")
    whole = real_run(*LAUNCHERS["ddp"], *SHORT, run_dir=tmp_path / "whole")
    fault = {"RUNNER_FAULT": "error:forward:12"}
    options = (*SHORT, "checkpoint.every_steps=4", "checkpoint.check_space=false")
    failed = real_run(*LAUNCHERS["ddp"], *options, run_dir=small_disk / "run", environment=fault)
    assert "injected" in failed.record["reason"]
    warnings = failed.record["warnings"]
    assert "no checkpoint at step 8: disk full: the checkpoint needs 3.6 MiB, free" in warnings[0]
    assert "step_00000004 is kept" in warnings[0]
    assert checkpoint_names(small_disk / "run") == ["step_00000004"]
    required = real_run.resume(small_disk / "run", "checkpoint.required=true")
    assert required.returncode == 1
    assert "no checkpoint at step 8: disk full" in required.record["reason"]
    assert checkpoint_names(small_disk / "run") == ["step_00000004"]
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    resumed = real_run.resume(small_disk / "run", "checkpoint.required=false")
    assert resumed.returncode == 0, resumed.text
    assert "going on from step_00000004" in resumed.text, resumed.text
    assert numbers(resumed) == numbers(whole)


@pytest.mark.soak
def test_runs_started_at_the_same_moment_all_complete(tmp_path: Path) -> None:
    """Own ports, own folders though no folder was named, one shared cache; no home to write to;
    tokens found nowhere.
    """
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "token").write_text(TOKEN)
    env = {
        "HF_TOKEN": TOKEN,
        "WANDB_API_KEY": OTHER_SECRET,
        "HF_HOME": str(hub),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    arguments = (*LAUNCHERS["zero2"], *SHORT, "launcher.num_processes=1", "train.max_steps=2", f"note={OTHER_SECRET}")
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "runner", *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **env, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
            stdin=subprocess.DEVNULL,
        )
        for _ in range(4)
    ]
    texts = [run.communicate(timeout=240)[0] for run in runs]
    assert [run.returncode for run in runs] == [0] * 4, texts
    records = list((tmp_path / "outputs").rglob("record.json"))
    assert len(records) == 4
    for path in (tmp_path / "outputs").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert TOKEN.encode() not in content, path
            assert OTHER_SECRET.encode() not in content, path


@pytest.mark.parametrize("place", ["/proc/nothing/run", "/dev/null/run"])
def test_a_place_that_cannot_be_written_is_named_in_one_line(place: str, tmp_path: Path) -> None:
    done = command(*LAUNCHERS["ddp"], *SHORT, run_dir=Path(place))
    assert done.returncode == 2, done.text
    assert "hydra.run.dir" in done.text
    assert "Traceback" not in done.text


def test_a_home_that_cannot_be_written_needs_one_override(tmp_path: Path) -> None:
    env = {"HOME": "/dev/null/home", "XDG_CACHE_HOME": None, "HF_HOME": None}
    small = (*LAUNCHERS["ddp"], *SHORT, "launcher.num_processes=1", "train.max_steps=1")
    refused = command(*small, run_dir=tmp_path / "run", env=env)
    assert refused.returncode == 2, refused.text
    assert "set cache_dir=DIR" in refused.text
    assert "Traceback" not in refused.text
    done = command(*small, f"cache_dir={tmp_path}/cache", run_dir=tmp_path / "run", env=env)
    assert done.returncode == 0, done.text
