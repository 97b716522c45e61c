"""`fit` as it is typed, on CPU ranks whose resident memory really exceeds the budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_sweep import started, sweep, wait_for
from tests.conftest import command

QUICK = (
    "dataset.max_train_rows=1600",
    "dataset.max_validation_rows=32",
    "train.eval_micro_batch_size=16",
    "fit.steps=2",
)
MIB = 2**20


def trial_log_of(cwd: Path) -> dict[str, Any]:
    """The newest trial log."""
    content: dict[str, Any] = json.loads(max(cwd.glob("outputs/*/*/ledger.json")).read_text())
    return content


def resident_mib(tmp_path: Path, *overrides: str) -> int:
    """What the fullest rank of a run with 8 rows a batch takes: most of it libraries, other ones with each build of
    torch.
    """
    done = command(
        *overrides,
        *QUICK[:3],
        "train.micro_batch_size=8",
        "train.max_steps=2",
        "train.save_model=false",
        run_dir=tmp_path / "few_rows",
    )
    assert done.returncode == 0, done.text
    return int(max(done.record["peak_memory_bytes"]) // MIB)


@pytest.mark.soak  # half a dozen trials in fresh processes each
@pytest.mark.parametrize("launcher", ["launcher=ddp", "zero_stage=2"])
def test_largest_micro_batch_within_resident_memory(tmp_path: Path, launcher: str) -> None:
    """b ran within the budget; at most b + max(1, 10 %) exceeded it in a real process that was ended for it."""
    budget = resident_mib(tmp_path, launcher) + 120  # room for some 200 rows
    found = sweep(tmp_path, "fit", launcher, f"fit.memory_budget={budget}MiB", "fit.name=here", *QUICK)
    assert found.returncode == 0, found.stdout + found.stderr
    trial_log = trial_log_of(tmp_path)
    best, limit = trial_log["result"], budget * MIB
    ran = [candidate for candidate in trial_log["candidates"] if candidate["status"] == "ran"]
    over = [candidate for candidate in trial_log["candidates"] if candidate["status"] == "over budget"]
    assert best["micro_batch_size"] == max(candidate["micro_batch_size"] for candidate in ran)
    assert min(candidate["micro_batch_size"] for candidate in over) <= best["micro_batch_size"] + max(
        1, best["micro_batch_size"] // 10
    )
    assert all(candidate["measured_bytes"] <= limit for candidate in ran)
    assert all(candidate["measured_bytes"] > limit for candidate in over)
    assert all(candidate["predicted_bytes"] and candidate["samples_per_second"] for candidate in ran)
    assert f"train.micro_batch_size={best['micro_batch_size']}" in found.stdout
    trials = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/*/*/trial_*/record.json")]
    assert len(trials) == len(trial_log["candidates"])
    assert all(trial["fit"]["trial"] for trial in trials)
    saved = (tmp_path / "conf" / "fitted" / "here.yaml").read_text()
    assert f"micro_batch_size: {best['micro_batch_size']}" in saved
    assert launcher.partition("=")[2] in saved
    rendered = command("render", "+fitted=here", cwd=tmp_path, run_dir=tmp_path / "rendered")
    assert rendered.returncode == 0, rendered.text
    assert f"micro_batch_size: {best['micro_batch_size']}\n" in (tmp_path / "rendered" / "config.yaml").read_text()


@pytest.mark.soak  # a dozen trials in fresh processes
def test_search_finds_the_same_run_in_less_memory(tmp_path: Path, real_run: Any) -> None:
    """1024 rows a step do not fit as 512 × 1; what the search space finds runs within the budget
    with the same losses.
    """
    evaluated = ("dataset.max_validation_rows=32", "train.eval_micro_batch_size=16")
    plain = (
        "zero_stage=2",
        "train.micro_batch_size=512",
        "train.save_model=false",
        *evaluated,
        "scheduler.warmup_steps=0",
        "train.log_every=1",
    )
    free = real_run(*plain, "train.max_steps=10", run_dir=tmp_path / "free")
    needed = max(free.record["peak_memory_bytes"]) // MIB
    budget = (needed + resident_mib(tmp_path, "zero_stage=2")) // 2  # the plain configuration cannot meet it
    found = sweep(
        tmp_path,
        "fit",
        *plain[:2],
        "fit.target_global_batch=1024",
        f"fit.memory_budget={budget}MiB",
        *QUICK,
        "dataset.max_train_rows=3072",
    )
    assert found.returncode == 0, found.stdout + found.stderr
    trial_log = trial_log_of(tmp_path)
    best = trial_log["result"]
    names = list(dict.fromkeys(candidate["candidate"] for candidate in trial_log["candidates"]))
    assert names[:3] == ["as configured", "gradient checkpointing", "ZeRO-3"]
    assert len(names) == 10
    assert best["measured_bytes"] <= budget * MIB
    assert best["micro_batch_size"] < 512
    assert best["micro_batch_size"] * best["gradient_accumulation_steps"] * 2 == 1024
    ran = [candidate for candidate in trial_log["candidates"] if candidate["status"] == "ran"]
    assert best["samples_per_second"] == max(candidate["samples_per_second"] for candidate in ran)
    assert all(candidate["reason"] for candidate in trial_log["candidates"] if candidate["status"] != "ran")
    kept = [
        text
        for text in plain
        if text.partition("=")[0] not in {override.partition("=")[0] for override in best["overrides"]}
    ]
    small = real_run(*kept, *best["overrides"], "train.max_steps=10", run_dir=tmp_path / "small")
    assert needed > 1.1 * budget
    assert [step["loss"] for step in small.steps] == pytest.approx([step["loss"] for step in free.steps], rel=1e-3)
    assert len(small.steps) == 10


FAULTS = [
    ("kill:forward:1:1", "killed", "killed by SIGKILL"),
    ("hang:forward:1:0", "timed out", "took longer than fit.trial_timeout_seconds"),
    ("oom:backward:1", "out of memory", "OutOfMemoryError"),
    ("error:forward:1", "failed", "InjectedFault: injected in forward of step 1"),
]


@pytest.fixture(scope="module")
def hosts() -> Any:
    from runner.launch.host_pool import SharedHosts

    shared = SharedHosts()
    yield shared
    shared.close()


@pytest.mark.parametrize(("fault", "status", "reason"), FAULTS)
def test_every_end_of_a_trial_is_distinguished(
    tmp_path: Path, hosts: Any, fault: str, status: str, reason: str
) -> None:
    """Killed as by the kernel, hung, out of memory, another error: the search goes on or ends, and no rank is left."""
    from rich.console import Console

    from runner.compose import compose_run
    from runner.fit.largest import find_largest
    from runner.fit.memory_budget import budget_of
    from runner.fit.trial import TrialRunner
    from runner.launch.process_signals import Stopping
    from runner.preflight.check import check

    composed = compose_run(
        [
            "launcher=ddp",
            "fit.max_micro_batch_size=1",
            f"fit.trial_timeout_seconds={10 if status == 'timed out' else 60}",
            f'hydra.run.dir="{tmp_path / "run"}"',
            *QUICK,
        ]
    )
    config = check(composed).config
    trial_runner = TrialRunner(
        tmp_path / "trials", budget_of(config), hosts, Stopping(), Console(quiet=True), {"RUNNER_FAULT": fault}
    )
    found = find_largest(composed, config, trial_runner)
    assert [trial.status for trial in found.trials] == [status]
    assert reason in found.trials[0].reason
    assert (found.rows, bool(found.error)) == (0, status == "failed")
    ranks = [json.loads(path.read_text())["failure"].get("rank") for path in tmp_path.glob("trials/*/record.json")]
    assert len(ranks) == 1
    assert not [line for line in _processes() if str(tmp_path) in line]


def _processes() -> list[str]:
    """Where the standard output of each process goes: a rank's goes to its log in the run folder."""
    import contextlib
    import os

    found = []
    for path in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(path))
    return found


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("fit.memory_budget=plenty", "fit.memory_budget=plenty: 'plenty' is no amount of memory"),
        ("fit.target_global_batch=7", "use fit.target_global_batch=6 or 8"),
    ],
)
def test_wrong_requests_are_one_line(tmp_path: Path, override: str, why: str) -> None:
    found = sweep(tmp_path, "fit", override)
    assert found.returncode == 2
    assert why in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_a_deepspeed_json_that_fixes_the_batch_is_refused(tmp_path: Path) -> None:
    """Each trial would run the file's micro batch, whatever was tried."""
    (tmp_path / "ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}}'
    )
    found = sweep(tmp_path, "fit", "launcher.config_file=ds.json")
    assert found.returncode == 2
    assert "train_micro_batch_size_per_gpu=4" in found.stderr
    assert 'write "train_micro_batch_size_per_gpu": "auto" in launcher.config_file' in found.stderr
    searched = sweep(tmp_path, "fit", "launcher.config_file=ds.json", "fit.target_global_batch=64")
    assert searched.returncode == 2
    assert "the search space changes stage, offload and batch, which this file fixes" in searched.stderr


def test_a_run_refuses_keys_of_fit(tmp_path: Path) -> None:
    found = sweep(tmp_path, "fit.steps=2")
    assert found.returncode == 2
    assert "fit.steps: this has no effect" in found.stderr


@pytest.mark.soak
def test_ctrl_c_ends_the_search(tmp_path: Path) -> None:
    import signal

    process = started(tmp_path, "fit", "launcher=ddp", "fit.memory_budget=640MiB", *QUICK)
    wait_for(lambda: list(tmp_path.glob("outputs/*/*/trial_1/logs/rank_0.log")))
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert "nothing was decided" in (tmp_path / "output.txt").read_text()
