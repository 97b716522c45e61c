"""Training state per method: expected bytes worked out by hand from the rules in docs/memory.md."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from workloads import Buckets, made, state_items

from runner.engines.deepspeed.memory import fullest, partitions
from runner.memory.facts import Architecture, ModelFacts, ParameterFact
from runner.memory.items import Item
from runner.memory.workload import Workload

ARCHITECTURE = Architecture("encoder", '{"model_type": "none"}')
# Ψ = 1000 + 500 + 7 + 3 = 1510 elements; group with decay 1500, without 10.
FACTS = ModelFacts(
    (
        ParameterFact("a", 1000, True),
        ParameterFact("b", 7, False),
        ParameterFact("c", 500, True),
        ParameterFact("d", 3, False),
    ),
    0,
    10,
    None,
)
PSI = 1510


def workload(**changes: Any) -> Workload:
    buckets = Buckets(reduce_bucket_size=100, stage3_param_persistence_threshold=0)
    return made(ARCHITECTURE, **({"precision": "fp16", "buckets": buckets} | changes))


def total(items: list[Item], category: str, place: str = "device", moment: str = "step") -> int:
    return sum(
        item.bytes for item in items if item.category == category and item.place == place and moment in item.moments
    )


STATES = ("parameters", "gradients", "optimizer_states", "master_weights")


def test_partitions_are_padded_to_twice_the_world_size() -> None:
    # 1500 over 4 ranks: multiple of 8 is 1504, 376 each; 10: multiple of 8 is 16, 4 each.
    assert partitions([[1000, 500], [7, 3]], 4) == [376, 4]


def test_a_tensor_on_the_border_counts_for_both_ranks() -> None:
    # Partition of 750: the first tensor (0..999) touches both, the second (1000..1499) only the last.
    assert [fullest([[1000, 500]], 2, rank) for rank in (0, 1)] == [1000, 1500]
    # Partitions of 6: the 7 touches both ranks, the 3 only the last.
    assert [fullest([[1000, 500], [7, 3]], 2, rank) for rank in (0, 1, None)] == [1000 + 7, 1500 + 7 + 3, 1500 + 7 + 3]


def test_the_fullest_rank_is_the_one_that_a_count_of_all_ranks_finds() -> None:
    """Against the definition: for each rank, the whole tensors that its partition touches."""
    groups = [[1000, 3, 4, 500, 90, 1, 1, 1], [7, 3, 20]]
    for world in (1, 2, 3, 7, 64, 1000):
        kept = [0] * world
        for group, part in zip(groups, partitions(groups, world), strict=True):
            ends = list(itertools.accumulate(group))
            for rank in range(world):
                kept[rank] += sum(
                    n for n, end in zip(group, ends, strict=True) if end > rank * part and end - n < (rank + 1) * part
                )
        assert [fullest(groups, world, rank) for rank in range(world)] == kept
        assert fullest(groups, world) == max(kept)


def test_a_billion_ranks_cost_no_more_than_two() -> None:
    assert (
        fullest([[1000, 500], [7, 3]], 10**9) == 1000 + 7 + 3
    )  # two elements each: rank 3 has 6 and 7, where the 7 ends and the 3 begins


def test_ddp_holds_16_bytes_a_parameter_and_4_in_buckets() -> None:
    items = state_items(workload(launcher="ddp", zero_stage=0, precision="fp32"), FACTS)
    assert sum(total(items, name) for name in STATES) == 16 * PSI
    assert total(items, "communication_buckets") == 4 * PSI


def test_one_rank_has_no_ddp_buckets_and_a_bucket_view_no_copy() -> None:
    alone = state_items(workload(launcher="ddp", zero_stage=0, num_processes=1), FACTS)
    view = state_items(workload(launcher="ddp", zero_stage=0, gradient_as_bucket_view=True), FACTS)
    assert total(alone, "communication_buckets") == total(view, "communication_buckets") == 0
    assert total(view, "gradients", moment="forward") == 4 * PSI


def test_stage_0_in_half_precision_is_the_20_byte_rule() -> None:
    items = state_items(workload(zero_stage=0, optimizer_kernel="fused"), FACTS)
    # 2 weights + 2 gradients + 4 master + 8 Adam, and 4 for the step's fp32 gradients.
    assert sum(total(items, name) for name in STATES) == 16 * PSI
    assert total(items, "temporary") == 4 * PSI


@pytest.mark.parametrize("ranks", [1, 2])
def test_stage_0_flattens_gradients_on_a_single_rank_too(ranks: int) -> None:
    """DeepSpeed's allreduce_bucket flattens before it looks how many ranks there are."""
    assert (
        total(
            state_items(workload(zero_stage=0, precision="fp32", num_processes=ranks), FACTS),
            "communication_buckets",
            moment="backward",
        )
        == 4 * PSI
    )


def test_stages_1_and_2_divide_12_bytes_by_the_ranks() -> None:
    # Two ranks: 1500 → 1500 padded to a multiple of 4 = 750 each; 10 → 12, 6 each. Flat weights: 1500 + 12.
    for stage in (1, 2):
        items = state_items(workload(zero_stage=stage), FACTS, rank=0)
        assert total(items, "parameters") == 2 * 1512
        assert total(items, "master_weights") + total(items, "optimizer_states") == 12 * 756
        assert total(items, "gradients") == 2 * 1007


def test_the_fullest_rank_is_taken_when_none_is_named() -> None:
    assert total(state_items(workload(zero_stage=2), FACTS), "gradients") == 2 * 1510


def test_stage_3_rounds_every_tensor_up() -> None:
    items = state_items(workload(zero_stage=3, num_processes=4), FACTS)
    own = 250 + 125 + 2 + 1
    assert total(items, "parameters") == 2 * own
    assert total(items, "gradients") == 2 * own
    assert total(items, "master_weights") + total(items, "optimizer_states") == 12 * own


def test_stage_3_keeps_small_tensors_whole() -> None:
    buckets = Buckets(reduce_bucket_size=100, stage3_param_persistence_threshold=7)
    items = state_items(workload(zero_stage=3, buckets=buckets), FACTS)
    assert total(items, "parameters") == 2 * (500 + 250 + 4 + 2) + 2 * (7 + 3)


def test_optimizer_offload_moves_states_to_the_host() -> None:
    for stage, own in ((1, 756), (2, 756), (3, 756)):  # stage 3: 500 + 250 + 4 + 2
        items = state_items(workload(zero_stage=stage, offload_optimizer="cpu"), FACTS)
        assert total(items, "optimizer_states") == total(items, "master_weights") == 0
        assert total(items, "optimizer_states", "host") == 8 * own
        assert total(items, "master_weights", "host") == 4 * own
        # fp32 gradients for the optimizer; stage 3 keeps its half-precision partition buffer on the host too.
        assert total(items, "gradients", "host") == (4 if stage < 3 else 6) * own


def test_parameter_offload_moves_partitions_to_the_host() -> None:
    items = state_items(workload(zero_stage=3, offload_optimizer="cpu", offload_params="cpu"), FACTS)
    assert total(items, "parameters") == 0
    assert total(items, "parameters", "host") == 2 * 756


def test_nvme_puts_states_into_files() -> None:
    items = state_items(workload(zero_stage=3, offload_optimizer="nvme", offload_params="nvme"), FACTS)
    assert total(items, "optimizer_states", "disk") == 8 * 756
    assert total(items, "optimizer_states", "host") == total(items, "optimizer_states") == 0


@pytest.mark.parametrize(("overlap", "copies"), [(True, 3), (False, 2)])
def test_reduce_buckets(overlap: bool, copies: int) -> None:
    """One or two buckets of 100 elements and one flattened copy, in half precision, only while gradients flow."""
    buckets = Buckets(reduce_bucket_size=100, overlap_comm=overlap)
    items = state_items(workload(zero_stage=2, buckets=buckets), FACTS)
    assert total(items, "communication_buckets", moment="forward") == copies * 100 * 2
    assert total(items, "communication_buckets", moment="step") == 0


def test_accumulation_keeps_gradients_through_the_forward_pass() -> None:
    for changes in ({"launcher": "ddp", "zero_stage": 0}, {"zero_stage": 2}):
        once, twice = (state_items(workload(gradient_accumulation_steps=steps, **changes), FACTS) for steps in (1, 2))
        assert total(once, "gradients", moment="forward") == 0
        assert total(twice, "gradients", moment="forward") == total(twice, "gradients", moment="step") > 0


def test_adam_temporaries_by_kernel() -> None:
    on_gpu, on_cpu = workload(device="cuda"), workload(device="cpu")
    assert on_gpu.step_temporaries([10, 20]) == 4 * 30
    assert on_cpu.step_temporaries([10, 20]) == 2 * 4 * 20
    assert replace(on_gpu, optimizer_kernel="fused").step_temporaries([10, 20]) == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_fall_with_the_ranks_by_the_stage_rule(stage: int, precision: str) -> None:
    """Rajbhandari et al. 2020, section 5: with many ranks only 4Ψ, 4Ψ, 2Ψ and 0 bytes of the
    half-precision 16Ψ stay.
    """
    big = ModelFacts((ParameterFact("a", 64_000, True), ParameterFact("b", 64_000, True)), 0, 0, None)
    sizes = [
        sum(
            total(state_items(workload(zero_stage=stage, precision=precision, num_processes=n), big, rank=0), name)
            for name in STATES
        )
        for n in (1, 2, 8)
    ]
    b = 4 if precision == "fp32" else 2
    psi = 128_000
    master = 0 if stage == 0 and b == 4 else 4
    for size, n in zip(sizes, (1, 2, 8), strict=True):
        whole = {0: 2 * b + master + 8, 1: b, 2: b, 3: 0}[stage] * psi
        divided = 0 if stage == 0 else (master + 8 + (b if stage == 3 else 0) + (b if stage == 3 else 0)) * psi // n
        # Stages 1 and 2 keep gradients of whole tensors: with 8 ranks, one of the two tensors.
        gradients = b * (64_000 if n >= 2 else psi) if stage in (1, 2) else 0
        assert size == whole + divided + gradients
