"""FSDP on two gloo ranks: the same training as DDP, resumed exactly, on another number of ranks
too, and a whole model.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interrupting import numbers

SHORT = (
    "train.max_steps=8",
    "train.micro_batch_size=8",
    "scheduler.warmup_steps=0",
    "dataset.max_train_rows=400",
    "dataset.max_validation_rows=16",
    "train.log_every=1",
)
MODELS = {
    "deberta": (),
    "gpt2": ("recipe=gpt2_wikitext", "model=gpt2_tiny"),
    "blenderbot": ("recipe=blenderbot_mudoconv", "model=blenderbot_tiny"),
}


@pytest.mark.parametrize(
    "name", ["deberta", *(pytest.param(name, marks=pytest.mark.soak) for name in ("gpt2", "blenderbot"))]
)
def test_losses_and_metrics_are_those_of_ddp(name, real_run, tmp_path: Path) -> None:
    steps = 30
    asked = (*MODELS[name], *SHORT, f"train.max_steps={steps}", "train.epochs=10")
    runs = {
        launcher: real_run(f"launcher={launcher}", *asked, run_dir=tmp_path / launcher) for launcher in ("ddp", "fsdp")
    }
    for run in runs.values():
        assert run.returncode == 0, run.text
    ddp, fsdp = runs["ddp"], runs["fsdp"]
    assert [line["step"] for line in fsdp.steps] == list(range(1, steps + 1))
    for mine, theirs in zip(fsdp.steps, ddp.steps, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
        assert mine["learning_rate"] == theirs["learning_rate"]
    for metric, value in ddp.record["metrics"].items():
        assert fsdp.record["metrics"][metric] == pytest.approx(value, rel=1e-3)
    assert fsdp.record["observed"]["distributed_type"] == "FSDP"
    assert fsdp.record["num_parameters"] == ddp.record["num_parameters"]
    assert fsdp.record["parameter_checksums"][0] == pytest.approx(ddp.record["parameter_checksums"][0], rel=1e-4)
    assert_loads(tmp_path / "fsdp" / "model", ddp.record["parameter_checksums"][0])


def assert_loads(folder: Path, checksum: list[float]) -> None:
    """The saved folder gives `from_pretrained` the weights that were trained."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder)
    values = [parameter.detach().double() for parameter in model.parameters()]
    assert sum(value.square().sum().item() for value in values) == pytest.approx(checksum[1], rel=1e-4)


RESUMED = ("launcher=fsdp", *SHORT, "checkpoint.every_steps=3")


@pytest.fixture(scope="module")
def whole(real_run, tmp_path_factory):
    result = real_run(*RESUMED, run_dir=tmp_path_factory.mktemp("whole") / "run")
    assert result.returncode == 0, result.text
    return result


@pytest.mark.parametrize("checkpoint", ["sharded", pytest.param("full", marks=pytest.mark.soak)])
def test_a_killed_run_resumes_bit_equal(checkpoint, whole, real_run, tmp_path: Path) -> None:
    killed = real_run(
        *RESUMED,
        f"fsdp.checkpoint={checkpoint}",
        run_dir=tmp_path / "run",
        environment={"RUNNER_FAULT": "kill:forward:8:1"},
    )
    assert killed.returncode == 1
    files = {path.name for path in (tmp_path / "run/checkpoints/step_00000006").glob("shard_*")}
    assert files == ({"shard_0_of_2.pt", "shard_1_of_2.pt"} if checkpoint == "sharded" else {"shard_0_of_1.pt"})
    resumed = real_run.resume(tmp_path / "run")
    assert resumed.returncode == 0, resumed.text
    assert numbers(resumed) == numbers(whole)


@pytest.mark.soak
def test_shards_of_two_ranks_are_taken_up_by_four(whole, real_run, tmp_path: Path) -> None:
    """The rows of every step stay, so the losses do up to the order of sums."""
    failed = real_run(*RESUMED, run_dir=tmp_path / "run", environment={"RUNNER_FAULT": "error:forward:7"})
    assert failed.returncode == 1
    resumed = real_run.resume(tmp_path / "run", "launcher.num_processes=4")
    assert resumed.returncode == 0, resumed.text
    assert resumed.record["world_size"] == 4
    for mine, theirs in zip(resumed.steps, whole.steps, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
