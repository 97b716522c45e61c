"""Checkpoints and resumes on real ranks: bit-equal to the run that was never interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.errors import RequestError
from tests.conftest import Result
from tests.interrupting import LAUNCHERS, SHORT, checkpoint_names, numbers

EVERY_3 = ("checkpoint.every_steps=3",)
FAILS_IN_STEP_11 = {"RUNNER_FAULT": "error:forward:11"}


@pytest.fixture(scope="module")
def whole(real_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`whole(launcher)` → the uninterrupted run, made once."""
    known: dict[str, Result] = {}

    def run(launcher: str) -> Result:
        if launcher not in known:
            known[launcher] = real_run(*LAUNCHERS[launcher], *SHORT, run_dir=tmp_path_factory.mktemp(launcher) / "run")
            assert known[launcher].returncode == 0, known[launcher].text
        return known[launcher]

    return run


@pytest.mark.parametrize(
    "launcher",
    [
        "ddp",
        "zero2",
        "zero3",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("zero0", "zero1", "zero3_offload")),
    ],
)
def test_a_resumed_run_is_bit_equal_to_the_uninterrupted_one(
    launcher: str, whole: Any, real_run: Any, tmp_path: Path
) -> None:
    failed = real_run(*LAUNCHERS[launcher], *SHORT, *EVERY_3, run_dir=tmp_path / "run", environment=FAILS_IN_STEP_11)
    assert failed.returncode == 1
    assert "injected in forward of step 11" in failed.record["reason"]
    assert checkpoint_names(tmp_path / "run") == ["step_00000006", "step_00000009"]
    resumed = real_run.resume(tmp_path / "run")
    assert resumed.returncode == 0, resumed.text
    assert "going on from step_00000009" in resumed.text
    assert numbers(resumed) == numbers(whole(launcher))
    record = resumed.record
    assert [(attempt["status"], attempt.get("resumed_from_step")) for attempt in record["attempts"]] == [
        ("failed", None),
        ("completed", 9),
    ]
    assert record["wall_seconds"] == pytest.approx(sum(attempt["wall_seconds"] for attempt in record["attempts"]))
    assert sum(record["phases"].values()) == pytest.approx(record["wall_seconds"], rel=0.01)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(whole: Any, real_run: Any, tmp_path: Path) -> None:
    real_run(*LAUNCHERS["zero2"], *SHORT, *EVERY_3, run_dir=tmp_path / "run", environment=FAILS_IN_STEP_11)
    shard = next((tmp_path / "run/checkpoints/step_00000009/deepspeed").glob("*rank_1*optim_states.pt"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    resumed = real_run.resume(tmp_path / "run")
    assert "checkpoint step_00000009 is damaged" in resumed.text
    assert "another checksum" in resumed.text
    assert "going on from step_00000006" in resumed.text
    assert "damaged_step_00000009" in checkpoint_names(tmp_path / "run")
    assert numbers(resumed) == numbers(whole("zero2"))


def test_a_missing_shard_is_named_and_without_a_whole_checkpoint_the_run_begins_again(
    whole: Any, real_run: Any, tmp_path: Path
) -> None:
    """A shard of one rank is gone from each checkpoint in turn."""
    real_run(
        *LAUNCHERS["zero2"], *SHORT, "checkpoint.every_steps=9", run_dir=tmp_path / "run", environment=FAILS_IN_STEP_11
    )
    next((tmp_path / "run/checkpoints/step_00000009/deepspeed").glob("*rank_1*optim_states.pt")).unlink()
    resumed = real_run.resume(tmp_path / "run")
    assert "rank_1_mp_rank_00_optim_states.pt is missing" in resumed.text
    assert "there is no checkpoint: the run begins again from its start" in resumed.text
    assert numbers(resumed) == numbers(whole("zero2"))


@pytest.mark.parametrize(
    "launcher", [pytest.param("ddp", marks=pytest.mark.soak), "zero3", pytest.param("zero2", marks=pytest.mark.soak)]
)
def test_another_number_of_ranks_keeps_the_rows_of_every_step(launcher: str, real_run: Any, tmp_path: Path) -> None:
    """Two ranks, then one. Without dropout the losses differ by rounding only."""
    no_dropout = (*SHORT, "model.config.hidden_dropout_prob=0.0", "model.config.attention_probs_dropout_prob=0.0")
    full = real_run(*LAUNCHERS[launcher], *no_dropout, run_dir=tmp_path / "full")
    real_run(
        *LAUNCHERS[launcher],
        *no_dropout,
        "checkpoint.every_steps=5",
        run_dir=tmp_path / "run",
        environment={"RUNNER_FAULT": "error:forward:7"},
    )
    resumed = real_run.resume(tmp_path / "run", "launcher.num_processes=1")
    assert resumed.returncode == 0, resumed.text
    record = resumed.record
    assert (record["world_size"], record["micro_batch_size"], record["gradient_accumulation_steps"]) == (1, 16, 2)
    assert record["attempts"][-1]["changes"]["launcher.num_processes"] == 1
    for before, after in zip(full.steps, resumed.steps, strict=True):
        assert after["loss"] == pytest.approx(before["loss"], abs=1e-6)
        assert after["learning_rate"] == before["learning_rate"]


@pytest.mark.parametrize("launcher", ["ddp", pytest.param("zero3", marks=pytest.mark.soak)])
def test_more_ranks_than_before_keep_the_rows_of_every_step(launcher: str, real_run: Any, tmp_path: Path) -> None:
    """One rank, then two."""
    one_rank = (
        *LAUNCHERS[launcher],
        *SHORT,
        "model.config.hidden_dropout_prob=0.0",
        "model.config.attention_probs_dropout_prob=0.0",
        "launcher.num_processes=1",
    )
    full = real_run(*one_rank, run_dir=tmp_path / "full")
    real_run(
        *one_rank, "checkpoint.every_steps=5", run_dir=tmp_path / "run", environment={"RUNNER_FAULT": "error:forward:7"}
    )
    resumed = real_run.resume(tmp_path / "run", "launcher.num_processes=2")
    assert resumed.returncode == 0, resumed.text
    record = resumed.record
    assert (record["world_size"], record["global_batch_size"]) == (2, full.record["global_batch_size"])
    assert record["parameter_checksums"][0] == record["parameter_checksums"][1]
    for before, after in zip(full.steps, resumed.steps, strict=True):
        assert after["loss"] == pytest.approx(before["loss"], abs=1e-6)
        assert after["learning_rate"] == before["learning_rate"]


def test_the_newest_by_number_and_the_best_are_kept(real_run: Any, tmp_path: Path) -> None:
    """Text order would put 9 after 12."""
    done = real_run(
        *LAUNCHERS["ddp"],
        *SHORT,
        "train.max_steps=12",
        "checkpoint.every_steps=1",
        "checkpoint.keep_last=3",
        "checkpoint.keep_best=true",
        run_dir=tmp_path / "run",
    )
    assert done.returncode == 0, done.text
    best = "step_00000007_evaluated" if done.record["best"]["epoch"] == 1 else "step_00000012_evaluated"
    assert set(checkpoint_names(tmp_path / "run")) == {
        "step_00000010",
        "step_00000011",
        "step_00000012_evaluated",
        best,
    }
    assert "removed step_00000001" in done.text


def test_a_write_that_fails_on_one_rank_leaves_the_earlier_checkpoint_and_the_run(
    whole: Any, real_run: Any, tmp_path: Path
) -> None:
    """Rank 1 cannot write its second checkpoint (a limit on file size stands for a full disk); rank 0 can."""
    fault = {"RUNNER_FAULT": "full:forward:5:1"}
    done = real_run(
        *LAUNCHERS["zero2"], *SHORT, "checkpoint.every_steps=4", run_dir=tmp_path / "run", environment=fault
    )
    assert done.returncode == 0, done.text
    assert checkpoint_names(tmp_path / "run") == ["step_00000004"]
    assert any(
        "no checkpoint at step 8" in warning and "step_00000004 is kept" in warning
        for warning in done.record["warnings"]
    )
    assert numbers(done) == numbers(whole("zero2"))


def test_torch_elastic_restarts_from_the_last_checkpoint(whole: Any, real_run: Any, tmp_path: Path) -> None:
    done = real_run(
        *LAUNCHERS["zero2"],
        *SHORT,
        *EVERY_3,
        "launcher.max_restarts=1",
        run_dir=tmp_path / "run",
        environment={"RUNNER_FAULT": "error:forward:8:1"},
    )
    assert done.returncode == 0, done.text
    assert numbers(done) == numbers(whole("zero2"))
    restarts = done.record["attempts"][0]["restarts"]
    assert len(restarts) == 1
    assert "rank 1: InjectedFault" in restarts[0]["reason"]
    # The time before the restart stands in the checkpoint; counted from the command as well it would be there twice.
    assert done.steps[-1]["elapsed_seconds"] <= done.record["wall_seconds"]
    assert sum(done.record["phases"].values()) == pytest.approx(done.record["wall_seconds"])


def test_by_minutes_every_rank_writes_at_the_same_step(real_run: Any, tmp_path: Path) -> None:
    done = real_run(*LAUNCHERS["zero2"], *SHORT, "checkpoint.every_minutes=0.001", run_dir=tmp_path / "run")
    assert done.returncode == 0, done.text
    names = checkpoint_names(tmp_path / "run")
    assert len(names) == 2
    manifest = json.loads((tmp_path / "run/checkpoints" / names[-1] / "manifest.json").read_text())
    assert {"rank_0.pt", "rank_1.pt"} <= set(manifest["files"])
    assert not list((tmp_path / "run").glob("checkpoint_at_*"))


def test_what_would_change_the_numbers_is_refused(real_run: Any, tmp_path: Path) -> None:
    real_run(
        *LAUNCHERS["ddp"], *SHORT, *EVERY_3, run_dir=tmp_path / "run", environment={"RUNNER_FAULT": "error:forward:5"}
    )
    for change, words in {
        "optimizer.lr=1e-4": "changes what the run computes",
        "train.seed=7": "changes what the run computes",
        "train.epochs=5": "was planned over 14 optimizer steps, not 35",
        "zero_stage=3": "a group cannot be chosen anew",
        "train.micro_batch_size=5": "the run's global batch is 32 rows",
        "trian.seed=7": "did you mean train.seed",
    }.items():
        with pytest.raises(RequestError, match=words):
            real_run.resume(tmp_path / "run", change)
    done = real_run.resume(tmp_path / "run", "train.log_every=2", "checkpoint.keep_last=1", "note=again")
    assert done.returncode == 0
    assert done.record["config"]["note"] == "again"
    with pytest.raises(RequestError, match="this run is completed"):
        real_run.resume(tmp_path / "run")
