"""Ways to split a model over four gloo ranks: the same training as DDP on as many data-parallel replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import RequestError
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
        if mine["grad_norm"] is not None:  # DeepSpeed keeps none at ZeRO 0; what it clips shows in the losses
            assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=10 * tolerance)
        assert mine["learning_rate"] == theirs["learning_rate"]
    assert run.record["data_order_hash"] == reference.record["data_order_hash"]
    assert run.record["global_batch_size"] == reference.record["global_batch_size"]
    for metric, value in reference.record["metrics"].items():
        assert run.record["metrics"][metric] == pytest.approx(value, rel=1e-3)
    assert run.record["parameter_checksums"][0] == pytest.approx(reference.record["parameter_checksums"][0], rel=1e-3)


@pytest.mark.parametrize("name", ["fsdp", pytest.param("hpz", marks=pytest.mark.soak)])
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
@pytest.mark.variant
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


LLAMA = ("recipe=gpt2_wikitext", "model=llama_tiny", "dataset=stories_sample")
# The same rows a step as FOUR: two groups of two ranks take four rows each.
TENSOR = ("launcher=deepspeed", "parallel.tensor=2", "train.micro_batch_size=4")


@pytest.fixture(scope="module")
def ddp_llama(real_run, tmp_path_factory):
    result = real_run("launcher=ddp", *LLAMA, *FOUR, run_dir=tmp_path_factory.mktemp("llama") / "run")
    assert result.returncode == 0, result.text
    return result


@pytest.mark.parametrize(
    "stage", [2, *(pytest.param(stage, marks=pytest.mark.soak) for stage in (0, 1, 3))], ids="stage{}".format
)
def test_tensor_ranks_train_as_ddp(stage, ddp_llama, real_run, tmp_path: Path) -> None:
    run = real_run(*LLAMA, *FOUR, *TENSOR, f"zero_stage={stage}", run_dir=tmp_path / "run")
    assert_same_training(run, ddp_llama, tolerance=1e-3)
    assert run.record["method"] == f"ZeRO-{stage} + tensor 2"
    assert (run.record["world_size"], run.record["data_parallel_size"]) == (4, 2)
    assert run.record["num_parameters"] == ddp_llama.record["num_parameters"]
    assert_loads(tmp_path / "run" / "model", run.record["parameter_checksums"][0])


def assert_loads(folder: Path, checksum: list[float]) -> None:
    """The saved folder gives `from_pretrained` the weights that were trained."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    values = [parameter.detach().double() for parameter in model.parameters()]
    assert sum(value.sum().item() for value in values) == pytest.approx(checksum[0], rel=1e-4)
    assert sum(value.square().sum().item() for value in values) == pytest.approx(checksum[1], rel=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("stage", [3, *(pytest.param(stage, marks=pytest.mark.variant) for stage in (0, 2))])
def test_a_killed_run_of_tensor_ranks_resumes_bit_equal(stage, real_run, tmp_path: Path) -> None:
    asked = (*LLAMA, *FOUR, *TENSOR, f"zero_stage={stage}", "train.max_steps=8", "checkpoint.every_steps=3")
    whole = real_run(*asked, run_dir=tmp_path / "whole")
    killed = real_run(*asked, run_dir=tmp_path / "run", environment={"RUNNER_FAULT": "kill:forward:8:1"})
    assert (whole.returncode, killed.returncode) == (0, 1), whole.text
    with pytest.raises(RequestError, match=r"resumed on as many ranks as wrote it, 4"):
        real_run.resume(tmp_path / "run", "launcher.num_processes=2")
    with pytest.raises(RequestError, match=r"parallel\.tensor=1: this changes what the run computes"):
        real_run.resume(tmp_path / "run", "parallel.tensor=1")
    resumed = real_run.resume(tmp_path / "run")
    assert resumed.returncode == 0, resumed.text
    assert numbers(resumed) == numbers(whole)


QWEN3 = (
    "model.config={model_type:qwen3,vocab_size:436,hidden_size:128,intermediate_size:256,num_hidden_layers:2,"
    "num_attention_heads:4,num_key_value_heads:2,head_dim:32,max_position_embeddings:256,tie_word_embeddings:false,"
    "eos_token_id:435,pad_token_id:430}"
)


@pytest.mark.soak
@pytest.mark.variant
@pytest.mark.parametrize("more", [("train.gradient_checkpointing=true",), ("train.gradient_accumulation_steps=2",)])
def test_tensor_ranks_of_an_untied_qwen3(more, real_run, tmp_path: Path) -> None:
    """Norms inside heads, an output layer of its own, recomputed layers, accumulation."""
    asked = (*LLAMA, QWEN3, *FOUR, *more, "train.max_steps=10")
    reference = real_run("launcher=ddp", *asked, run_dir=tmp_path / "ddp")
    run = real_run(*asked, *TENSOR, "zero_stage=1", run_dir=tmp_path / "run")
    assert_same_training(run, reference, steps=10, tolerance=1e-3)
    assert_loads(tmp_path / "run" / "model", run.record["parameter_checksums"][0])
