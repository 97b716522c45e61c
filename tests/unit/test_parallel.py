"""The mesh of ranks: degrees that fit, files that carry them, bytes that follow; nothing is started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from runner.compose import compose_run
from runner.config import plan
from runner.config.resolve import resolve_machine
from runner.engines import engine_of, label_of
from runner.engines.deepspeed.memory import Buckets, ZeroLayout
from runner.engines.fsdp.memory import FsdpLayout
from runner.errors import RequestError
from runner.memory.estimate import estimate
from runner.memory.facts import Architecture, ModelFacts, ParameterFact
from runner.memory.search import alternatives
from runner.memory.workload import Workload
from runner.parallel.mesh import Mesh
from runner.parallel.tensor import why_not
from runner.preflight.check import check
from runner.render import accelerate_config

FSDP4 = ("launcher=fsdp", "launcher.num_processes=4")
ZERO4 = ("zero_stage=3", "launcher.num_processes=4")


def refused(*overrides: str) -> list[str]:
    with pytest.raises(RequestError) as caught:
        check(compose_run(list(overrides)), starting=False)
    return [problem.line() for problem in caught.value.problems if problem.severity == "error"]


@pytest.mark.parametrize(
    ("overrides", "reason", "fix"),
    [
        ((*FSDP4, "parallel.hybrid_shard=3"), "4 ranks cannot be grouped by 3", "parallel.hybrid_shard=2"),
        ((*FSDP4, "parallel.hybrid_shard=8"), "4 ranks cannot be grouped by 8", "launcher.num_processes=16"),
        ((*FSDP4, "parallel.hybrid_shard=4"), "these are all 4 ranks", "leave it out"),
        (("launcher=ddp", "launcher.num_processes=4", "parallel.hybrid_shard=2"), "launcher=ddp", "launcher=fsdp"),
        (("zero_stage=2", "launcher.num_processes=4", "parallel.hybrid_shard=2"), "this is ZeRO 2", "zero_stage=3"),
        ((*ZERO4, "parallel.hybrid_shard=2", "offload=cpu"), "not proved", "offload=optimizer_cpu"),
        ((*ZERO4, "parallel.hybrid_shard=2", "zero.partition_at_load=true"), "not proved", "leave one of them out"),
    ],
)
def test_degrees_that_do_not_fit_are_refused(overrides: tuple[str, ...], reason: str, fix: str) -> None:
    (line,) = refused(*overrides)
    assert line.startswith("error: parallel.hybrid_shard=")
    assert reason in line
    assert fix in line


def test_groups_of_a_mesh() -> None:
    assert (Mesh(12, 4).shard, Mesh(12, 4).groups, Mesh(12, 4).data) == (4, 3, 12)
    assert (Mesh(12).shard, Mesh(12).groups) == (12, 1)


def test_fsdps_yaml_names_replicas_of_shards() -> None:
    config, _ = resolve_machine(compose_run([*FSDP4[:1], "launcher.num_processes=6", "parallel.hybrid_shard=2"]).config)
    assert accelerate_config(config, Path("/run"))["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 3,
        "parallelism_config_dp_shard_size": 2,
        "parallelism_config_tp_size": 1,
        "parallelism_config_cp_size": 1,
    }
    assert plan.data_parallel_size(config) == 6  # every rank still sees rows of its own
    assert plan.method(config) == "FSDP + hybrid shard 2"


def test_zeros_json_names_the_group() -> None:
    config, _ = resolve_machine(compose_run([*ZERO4, "parallel.hybrid_shard=2"]).config)
    content = json.loads(engine_of(config).files(config, Path("/run"), 10, None)["ds_config.json"])
    assert content["zero_optimization"]["zero_hpz_partition_size"] == 2
    assert label_of({"launcher": {"name": "deepspeed"}, "zero": {"stage": 3}, "parallel": {"hybrid_shard": 2}}) == (
        "ZeRO-3 + hybrid shard 2"
    )
    assert label_of({"launcher": {"name": "ddp"}, "parallel": {"hybrid_shard": "x"}}) == "DDP"  # a damaged record


@pytest.mark.parametrize(("size", "adopted"), [(2, 2), (1, None), (0, None)])
def test_a_deepspeed_json_of_ones_own_sets_the_group(size: int, adopted: int | None, tmp_path: Path) -> None:
    file = tmp_path / "zero3.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": size}}))
    checked = check(compose_run([f"launcher.config_file={file}", "launcher.num_processes=4"]), starting=False)
    assert checked.config.parallel.hybrid_shard == adopted
    file.write_text(json.dumps({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4}}))
    lines = refused(f"launcher.config_file={file}", "launcher.num_processes=8", "parallel.hybrid_shard=2")
    assert any("zero_hpz_partition_size=4" in line for line in lines)


FACTS = ModelFacts(
    (ParameterFact("embedding.weight", 40, True, 5), ParameterFact("h.0.weight", 16, True, 4)), 0, 5, None
)


def sizes(layout: FsdpLayout | ZeroLayout, ranks: int) -> dict[str, int]:
    workload = Workload(Architecture.of("causal_lm", {"model_type": "gpt2"}), layout, device="cpu", num_processes=ranks)
    found: dict[str, int] = {}
    for item in layout.items(workload, FACTS, None):
        if "step" in item.moments:
            found[item.category] = found.get(item.category, 0) + item.bytes
    return found


def test_fsdp_shards_within_a_group_only() -> None:
    """5 rows of 8 over 2 of 4 ranks: 3 rows, 24 elements; 4 rows of 4: 8 elements. Over all 4: 2 rows and 1 row."""
    assert sizes(FsdpLayout(hybrid_shard=2), 4)["optimizer_states"] == 8 * (24 + 8)
    assert sizes(FsdpLayout(), 4)["optimizer_states"] == 8 * (16 + 4)


def test_hpz_keeps_a_second_copy_until_the_step() -> None:
    """40 and 16 elements over 2 ranks: 20 and 8, 4 bytes each; the states stay cut over all 4."""
    buckets = Buckets(stage3_param_persistence_threshold=0, reduce_bucket_size=1)
    with_copy, without = ZeroLayout(3, buckets=buckets, hybrid_shard=2), ZeroLayout(3, buckets=buckets)
    assert sizes(with_copy, 4)["gathered_parameters"] == 4 * (20 + 8)
    assert "gathered_parameters" not in sizes(without, 4)
    assert sizes(with_copy, 4)["optimizer_states"] == sizes(without, 4)["optimizer_states"] == 8 * (10 + 4)


LLAMA4 = ("recipe=chat_sft", "model=llama_tiny", "launcher.num_processes=4")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("launcher.num_processes=4", "parallel.tensor=2"), "no tensor-parallel plan for model_type=deberta-v2"),
        (
            ("recipe=gpt2_wikitext", "model=gpt2_tiny", "parallel.tensor=2"),
            "no tensor-parallel plan for model_type=gpt2",
        ),
        ((*LLAMA4, "parallel.tensor=4"), "num_key_value_heads=2 is no multiple of 4"),
        ((*LLAMA4, "parallel.tensor=3"), "4 ranks cannot be grouped by 3; use parallel.tensor=2 or parallel.tensor=4"),
        ((*LLAMA4, "launcher=ddp", "parallel.tensor=2"), "launcher=ddp cannot split a model this way"),
        ((*LLAMA4, "launcher=fsdp", "parallel.tensor=2"), "launcher=fsdp cannot split a model this way"),
        ((*LLAMA4, "parallel.tensor=2", "offload=optimizer_cpu"), "together with offload it is not proved here"),
        ((*LLAMA4, "zero_stage=3", "parallel.tensor=2", "parallel.hybrid_shard=2"), "with parallel.hybrid_shard"),
        ((*LLAMA4, "parallel.tensor=2", "adapter=lora"), "together with adapter=lora it is not proved here"),
        ((*LLAMA4, "model.config.model_type=olmo2", "parallel.tensor=2"), "not of Llama's kind"),
    ],
)
def test_tensor_parallelism_is_refused_where_it_would_not_train_the_same(
    overrides: tuple[str, ...], reason: str
) -> None:
    assert any(line.startswith("error: parallel.tensor=") and reason in line for line in refused(*overrides))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_models_with_llamas_plan_are_taken(kind: str) -> None:
    assert why_not({**LLAMA, "model_type": kind}, 2) is None


def test_a_group_stays_on_one_machine() -> None:
    (problem,) = Mesh(12, tensor=4, per_machine=6).problems()
    assert "has to be on one machine" in problem.why
    assert Mesh(12, tensor=3, per_machine=6).problems() == []


def test_batches_count_groups_of_tensor_ranks() -> None:
    """4 ranks in 2 groups: 5 rows × 2 accumulated × 2 groups = 20; DeepSpeed is not told the product of its ranks."""
    typed = (*LLAMA4, "parallel.tensor=2", "train.micro_batch_size=5", "train.gradient_accumulation_steps=2")
    config, problems = resolve_machine(compose_run(list(typed)).config)
    assert problems == []
    assert (plan.data_parallel_size(config), plan.global_batch_size(config)) == (2, 20)
    assert plan.steps_per_epoch(41, config) == 3
    content = json.loads(engine_of(config).files(config, Path("/run"), 10, None)["ds_config.json"])
    assert "train_batch_size" not in content
    assert content["tensor_parallel"] == {"autotp_size": 2, "vocab_parallel_lm_head": False}
    assert plan.method(config) == "ZeRO-2 + tensor 2"


def test_a_global_batch_is_divided_by_groups() -> None:
    typed = (*LLAMA4, "parallel.tensor=2", "train.micro_batch_size=4", "train.global_batch_size=24")
    config, _ = resolve_machine(compose_run(list(typed)).config)
    assert config.train.gradient_accumulation_steps == 3


def test_a_rank_works_on_its_part_of_a_llama() -> None:
    """Hidden 64, heads of 16: q 64 × 32, k and v 64 × 16 each, o 32 × 64; three of 48 × 64; two norms of 64 and a last
    one; embedding 100 × 64 whole, output layer 50 × 64.
    """
    workload = Workload(
        Architecture.of("causal_lm", LLAMA), ZeroLayout(1, tensor=2), device="cpu", num_processes=4, source_length=8
    )
    found = estimate(workload)
    part = 64 * (32 + 16 + 16 + 32) + 3 * 48 * 64 + 3 * 64 + 100 * 64 + 50 * 64
    assert found.num_parameters == 64 * (64 + 32 + 32 + 64) + 3 * 96 * 64 + 3 * 64 + 2 * 100 * 64
    assert found.largest_of("parameters") == pytest.approx(4 * part, rel=0.01)  # flat buffers are padded
    assert found.largest_of("optimizer_states") == pytest.approx(8 * part / 2, rel=0.01)  # over two groups
    whole = estimate(replace(workload, layout=ZeroLayout(1)))
    assert found.largest_of("activations") < whole.largest_of("activations")


def test_all_ways_are_shown_when_asked_for() -> None:
    workload = Workload(Architecture.of("causal_lm", LLAMA), ZeroLayout(2), device="cpu", num_processes=4)
    shown = {found.name for found in alternatives(workload, splits=True)}
    assert {"ZeRO-3 + hybrid shard 2", "FSDP + hybrid shard 2", "ZeRO-1 + tensor 2", "ZeRO-3 + tensor 2"} <= shown
    assert not any("tensor 4" in name or ("tensor" in name and "DDP" in name) for name in shown)
    assert not any("tensor" in found.name or "hybrid" in found.name for found in alternatives(workload))


def test_an_optimizer_of_whole_matrices_is_refused_where_ranks_share_layers() -> None:
    lines = refused(*LLAMA4, "zero_stage=0", "parallel.tensor=2", "optimizer=adafactor")
    assert any("parallel.tensor=2 cuts them" in line for line in lines)
