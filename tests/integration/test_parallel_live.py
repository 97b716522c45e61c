"""Ways to split a model over four gloo ranks: the same training as DDP on as many data-parallel replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interrupting import numbers

GPT2 = ("recipe=gpt2_wikitext", "model=gpt2_tiny")
FOUR = (
    "launcher.num_processes=4",
    "train.max_steps=30",
    "train.micro_batch_size=2",
    "task.block_size=32",
    "dataset.max_train_rows=300",
    "dataset.max_validation_rows=16",
    "scheduler.warmup_steps=2",
    "train.log_every=1",
)
HYBRID = {
    "fsdp": ("launcher=fsdp", "parallel.hybrid_shard=2"),
    "hpz": ("launcher=deepspeed", "zero_stage=3", "parallel.hybrid_shard=2"),
}


@pytest.fixture(scope="module")
def ddp(real_run, tmp_path_factory):
    result = real_run("launcher=ddp", *GPT2, *FOUR, run_dir=tmp_path_factory.mktemp("ddp") / "run")
    assert result.returncode == 0, result.text
    return result


def assert_same_training(run, reference, steps: int = 30, tolerance: float = 1e-4) -> None:
    """Losses, norms, learning rates, metrics and weights of two runs on the same rows."""
    assert run.returncode == 0, run.text
    assert [line["step"] for line in run.steps] == list(range(1, steps + 1))
    for mine, theirs in zip(run.steps, reference.steps, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=tolerance)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=10 * tolerance)
        assert mine["learning_rate"] == theirs["learning_rate"]
    assert run.record["data_order_hash"] == reference.record["data_order_hash"]
    assert run.record["global_batch_size"] == reference.record["global_batch_size"]
    for metric, value in reference.record["metrics"].items():
        assert run.record["metrics"][metric] == pytest.approx(value, rel=1e-3)
    assert run.record["parameter_checksums"][0] == pytest.approx(reference.record["parameter_checksums"][0], rel=1e-3)


@pytest.mark.parametrize("name", HYBRID)
def test_hybrid_shards_train_as_ddp(name, ddp, real_run, tmp_path: Path) -> None:
    run = real_run(*HYBRID[name], *GPT2, *FOUR, run_dir=tmp_path / "run")
    assert_same_training(run, ddp)
    assert run.record["method"].endswith(" + hybrid shard 2")


@pytest.mark.soak
@pytest.mark.parametrize("name", HYBRID)
def test_a_killed_run_of_hybrid_shards_resumes_bit_equal(name, real_run, tmp_path: Path) -> None:
    asked = (*HYBRID[name], *GPT2, *FOUR, "train.max_steps=8", "checkpoint.every_steps=3")
    whole = real_run(*asked, run_dir=tmp_path / "whole")
    killed = real_run(*asked, run_dir=tmp_path / "run", environment={"RUNNER_FAULT": "kill:forward:8:1"})
    assert (whole.returncode, killed.returncode) == (0, 1), whole.text
    if name == "fsdp":  # one file for each shard, whatever the number of groups
        files = {path.name for path in (tmp_path / "run/checkpoints/step_00000006").glob("shard_*")}
        assert files == {"shard_0_of_2.pt", "shard_1_of_2.pt"}
    resumed = real_run.resume(tmp_path / "run")
    assert resumed.returncode == 0, resumed.text
    assert numbers(resumed) == numbers(whole)


@pytest.mark.soak
@pytest.mark.parametrize("name", HYBRID)
def test_hybrid_shards_are_taken_up_without_groups(name, real_run, tmp_path: Path) -> None:
    asked = (*HYBRID[name], *GPT2, *FOUR, "train.max_steps=8", "checkpoint.every_steps=3")
    whole = real_run(*asked, run_dir=tmp_path / "whole")
    failed = real_run(*asked, run_dir=tmp_path / "run", environment={"RUNNER_FAULT": "error:forward:7"})
    assert (whole.returncode, failed.returncode) == (0, 1), whole.text
    resumed = real_run.resume(tmp_path / "run", "parallel.hybrid_shard=null")
    assert resumed.returncode == 0, resumed.text
    assert resumed.record["method"] in ("FSDP", "ZeRO-3")
    for mine, theirs in zip(resumed.steps, whole.steps, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
