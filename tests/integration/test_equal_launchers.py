"""The same training under every launcher, ZeRO stage and owner: losses, learning rates, parameters. Real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

PURE = (("deepspeed", "deepspeed"), ("client", "client"))  # who owns optimizer and scheduler
MIXED = (("deepspeed", "client"), ("client", "deepspeed"))
PLAIN = (
    "train.max_steps=50",
    "train.micro_batch_size=8",
    "scheduler.warmup_steps=0",
    "dataset.max_train_rows=1000",
    "dataset.max_validation_rows=16",
    "train.log_every=1",
    "train.save_model=false",
)
ACCUMULATED = (
    "train.max_steps=25",
    "train.gradient_accumulation_steps=3",
    "train.micro_batch_size=4",
    "scheduler.warmup_steps=10",
    "train.epochs=2",
    "dataset.max_train_rows=292",
)
SETTINGS = {"plain": PLAIN, "accumulated": (*PLAIN[4:], *ACCUMULATED)}
STEPS = {"plain": 50, "accumulated": 25}


def hand_learning_rate(step: int, warmup: int, total: int, peak: float = 1.0e-3) -> float:
    """The schedule's definition, written out: step counts from 0."""
    return peak * (step / warmup) if step < warmup else peak * ((total - step) / (total - warmup))


@pytest.fixture(scope="module", params=list(SETTINGS))
def baseline(request, real_run, tmp_path_factory):
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    result = real_run("launcher=ddp", *SETTINGS[name], run_dir=folder / "ddp")
    assert result.returncode == 0, result.text
    return name, result


def test_schedule_is_the_definition(baseline):
    name, ddp = baseline
    # plain: 1000 rows / (8 rows × 2 ranks) = 63 steps an epoch, cut at 50. accumulated: ceil(292 / 8) = 37 batches,
    # ceil(37 / 3) = 13 steps an epoch (the last accumulates one batch of 4 rows), 2 epochs = 26, cut at 25.
    warmup = {"plain": 0, "accumulated": 10}[name]
    assert len(ddp.steps) == STEPS[name]
    for line in ddp.steps:
        assert line["learning_rate"] == pytest.approx(
            hand_learning_rate(line["step"] - 1, warmup, STEPS[name]), rel=1e-12
        )


@pytest.mark.parametrize(
    "stage", [pytest.param(0, marks=pytest.mark.soak), pytest.param(1, marks=pytest.mark.soak), 2, 3]
)
def test_stage_and_owners_agree_with_ddp(baseline, stage, real_run, tmp_path: Path):
    compare_with_ddp(baseline, stage, PURE, real_run, tmp_path)


@pytest.mark.parametrize("baseline", ["plain"], indirect=True)
@pytest.mark.parametrize("stage", [2, *(pytest.param(stage, marks=pytest.mark.soak) for stage in (0, 1, 3))])
def test_stage_and_mixed_owners_agree_with_ddp(baseline, stage, real_run, tmp_path: Path):
    compare_with_ddp(baseline, stage, MIXED, real_run, tmp_path)


def compare_with_ddp(baseline, stage, owners, real_run, tmp_path: Path) -> None:
    """Losses, learning rates at every step and the parameters afterwards."""
    name, ddp = baseline
    for optimizer, scheduler in owners:
        extra = (
            ("zero.stage3_param_persistence_threshold=0",) if stage == 3 else ()
        )  # else every tensor of a tiny model stays whole
        result = real_run(
            f"zero_stage={stage}",
            f"optimizer.owner={optimizer}",
            f"scheduler.owner={scheduler}",
            *SETTINGS[name],
            *extra,
            run_dir=tmp_path / f"{optimizer}_{scheduler}",
        )
        assert result.returncode == 0, result.text
        assert [line["step"] for line in result.steps] == list(range(1, STEPS[name] + 1))
        for mine, theirs in zip(result.steps, ddp.steps, strict=True):
            assert mine["learning_rate"] == theirs["learning_rate"], (optimizer, scheduler, mine["step"])
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4), (optimizer, scheduler, mine["step"])
        checksums = result.record["parameter_checksums"]
        assert len(checksums) == 2
        assert checksums[0] == checksums[1]
        assert checksums[0] == pytest.approx(ddp.record["parameter_checksums"][0], rel=1e-4)
        assert result.record["observed"]["distributed_type"] == "DEEPSPEED"
        assert result.record["observed"]["world_size"] == 2


def test_ddp_ranks_hold_equal_parameters_and_all_the_rows(baseline):
    name, ddp = baseline
    record = ddp.record
    assert record["parameter_checksums"][0] == record["parameter_checksums"][1]
    assert record["observed"]["distributed_type"] in ("MULTI_CPU", "MULTI_GPU")
    # 50 steps of 16 rows; accumulated: 12 full steps of 24 rows and the last of the epoch with 4 rows = 292, then 12
    # more steps.
    assert record["samples_seen"] == {"plain": 800, "accumulated": 292 + 12 * 24}[name]


def test_one_process_sees_the_same_schedule(real_run, tmp_path: Path):
    """Half the peak in the middle, whatever the number of ranks, with accumulation too."""
    for ranks, accumulation in ((1, 1), (2, 1), (2, 2)):
        result = real_run(
            "launcher=ddp",
            f"launcher.num_processes={ranks}",
            f"train.gradient_accumulation_steps={accumulation}",
            "train.max_steps=8",
            "train.log_every=1",
            "scheduler.warmup_steps=0",
            "dataset.max_train_rows=800",
            "dataset.max_validation_rows=8",
            "train.save_model=false",
            run_dir=tmp_path / f"{ranks}_{accumulation}",
        )
        assert result.returncode == 0, result.text
        assert result.steps[4]["learning_rate"] == 0.5e-3
        assert result.steps[7]["learning_rate"] == pytest.approx(1e-3 / 8)
        assert result.record["world_size"] == ranks
