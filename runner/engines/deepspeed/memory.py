"""Training state of one rank under DeepSpeed 0.19.8, ZeRO 0–3: what is really allocated.

Sources, besides the installed code itself:

- Rajbhandari, Rasley, Ruwase, He: "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
  (SC 2020, arXiv:1910.02054), section 3.1: mixed-precision Adam needs 2 + 2 + 12 = 16 bytes a parameter
  (half weights, half gradients; fp32 copy, momentum, variance), section 5: dividing 12, then 14, then 16 of
  them by the number of ranks (stages 1, 2, 3).
- The other rule of thumb, 20 bytes: fp32 gradients come on top for the optimizer step (2 + 2 + 4 + 4 + 8), as in
  DeepSpeed's stage 0 in half precision.
- deepspeed/runtime/zero/stage_1_and_2.py, stage3.py, engine.py, runtime/fp16/unfused_optimizer.py, and torch's
  Adam; the lines they stand for are named at each item.

Ψ below is the number of trainable elements, N the number of ranks, b the bytes of one weight.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from runner.memory.facts import ModelFacts
from runner.memory.items import ALWAYS, Home, Item, Moment
from runner.memory.workload import BYTES_PER_ELEMENT, Precision, StateLayout, Workload
from runner.parallel.mesh import words

STAGE_0_REDUCE_ELEMENTS = 500_000_000
BACKWARD_MOMENTS: tuple[Moment, ...] = ("forward", "recompute", "backward")
Place = Literal["none", "cpu", "nvme"]


@dataclass(frozen=True)
class Buckets:
    """Communication settings, in elements, named as in DeepSpeed's JSON."""

    reduce_bucket_size: int = 200_000_000
    allgather_bucket_size: int = 200_000_000
    overlap_comm: bool = True
    contiguous_gradients: bool = True
    sub_group_size: int = 1_000_000_000
    stage3_prefetch_bucket_size: int = 50_000_000
    stage3_param_persistence_threshold: int = 100_000
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_max_reuse_distance: int = 1_000_000_000


def zero_label(stage: object, optimizer: object, params: object) -> str:
    """`ZeRO-2`, `ZeRO-2 + CPU optimizer offload`, `ZeRO-3 + NVMe offload`: the method's name wherever one is shown."""
    places = {optimizer, params} - {"none", None}
    if not places:
        return f"ZeRO-{stage}"
    target = "NVMe" if "nvme" in places else "CPU"
    return f"ZeRO-{stage} + {target} " + ("offload" if params not in ("none", None) else "optimizer offload")


@dataclass(frozen=True)
class ZeroLayout(StateLayout):
    """What a ZeRO stage partitions, and what is offloaded.

    A stage ignores offloads it does not know (as DeepSpeed does).
    """

    stage: int = 2
    offload_optimizer: Place = "none"
    offload_params: Place = "none"
    buckets: Buckets = field(default_factory=Buckets)
    zero3_init: bool = False
    nvme_pool_elements: int = 0
    hybrid_shard: int | None = None
    tensor: int = 1

    def __post_init__(self) -> None:
        if self.stage == 0:
            object.__setattr__(self, "offload_optimizer", "none")
        if self.stage < 3:
            object.__setattr__(self, "offload_params", "none")

    @property
    def label(self) -> str:
        """The method's name."""
        degrees = {"hybrid_shard": self.hybrid_shard, "tensor": self.tensor}
        return zero_label(self.stage, self.offload_optimizer, self.offload_params) + words(degrees)

    def items(self, workload: Workload, facts: ModelFacts, rank: int | None) -> list[Item]:
        """Items of one rank for parameters, gradients, optimizer states, master copy and buckets.

        Ranks that share every layer hold a part of the model each; over replicas it is partitioned as a whole one is.
        """
        if self.tensor > 1:
            workload = replace(workload, num_processes=workload.num_processes // self.tensor)
            rank = None if rank is None else rank // self.tensor
        if self.stage == 0:
            return _stage_0(workload, facts)
        return _stage_3(workload, facts) if self.stage == 3 else _stage_1_and_2(workload, facts, rank)

    @property
    def tensor_ranks(self) -> int:
        """Ranks that share every layer."""
        return self.tensor

    def weight_bytes(self, precision: Precision) -> int:
        """DeepSpeed casts the weights themselves."""
        return BYTES_PER_ELEMENT[precision]

    @property
    def differs_by_rank(self) -> bool:
        """Stages 1 and 2 keep whole gradients of tensors on a partition's border."""
        return self.stage in (1, 2)

    @property
    def loads_whole_model(self) -> bool:
        """Not where parameters are partitioned while the model is built."""
        return not (self.stage == 3 and self.zero3_init)

    @property
    def in_host_memory(self) -> Literal["", "optimizer", "all"]:
        """What is offloaded."""
        if self.offload_params != "none":
            return "all"
        return "optimizer" if self.offload_optimizer != "none" else ""

    def described(self) -> dict[str, Any]:
        """Settings for JSON output."""
        return {
            "launcher": "deepspeed",
            "zero_stage": self.stage,
            "offload_optimizer": self.offload_optimizer,
            "offload_params": self.offload_params,
            "buckets": vars(self.buckets),
            "zero3_init": self.zero3_init,
            "hybrid_shard": self.hybrid_shard,
            "tensor": self.tensor,
        }


def zero_of(workload: Workload) -> ZeroLayout:
    """The layout of a workload that DeepSpeed runs."""
    assert isinstance(workload.layout, ZeroLayout)
    return workload.layout


def _stage_0(workload: Workload, facts: ModelFacts) -> list[Item]:
    """DeepSpeed without partitioning: fp32 with torch's optimizer, or half precision with fp32 master copies.

    runtime/fp16/unfused_optimizer.py clones every weight to fp32 and makes fp32 gradients for the step;
    engine.allreduce_no_retain flattens gradients, up to 500,000,000 elements at a time.
    """
    psi, b = facts.numel, workload.weight_bytes
    groups = facts.groups(workload.weight_decay_groups)
    items = [
        Item("parameters", b * psi + facts.buffer_bytes, f"whole on every rank, {b} bytes each", ALWAYS),
        Item("optimizer_states", workload.optimizer.whole_bytes(facts.parameters), workload.optimizer.words),
        Item("gradients", b * psi, f"whole on every rank, {b} bytes each", workload.gradient_moments()),
        Item(
            "temporary",
            max(workload.step_temporaries(group) for group in groups),
            "the optimizer's intermediate results",
            ("step",),
        ),
    ]
    if b < 4:
        items.append(Item("master_weights", 4 * psi, "fp32 clone of every weight", ALWAYS))
        items.append(
            Item("temporary", 4 * psi, "fp32 gradients for the step: the 20th byte of the 20-bytes rule", ("step",))
        )
    # On a single rank, too: allreduce_bucket flattens before it looks how many there are.
    flat = b * min(psi, STAGE_0_REDUCE_ELEMENTS)
    items.append(
        Item(
            "communication_buckets",
            flat,
            "gradients flattened to be reduced, at most 500,000,000 elements",
            ("backward",),
        )
    )
    return items


def partitions(groups: list[list[int]], world_size: int) -> list[int]:
    """Elements of one rank's partition of each parameter group in stages 1 and 2.

    stage_1_and_2.py pads a group to a multiple of 2 N, so that every partition starts on 4 bytes in half precision.
    """
    return [math.ceil(sum(group) / (2 * world_size)) * 2 for group in groups]


def fullest(groups: list[list[int]], world_size: int, rank: int | None = None) -> int:
    """Elements of gradients that stages 1 and 2 keep on one rank: `rank`, or the one with most.

    copy_grads_in_partition keeps the gradient of a tensor whole on every rank whose partition holds a part of it, also
    on a border. From rank to rank the sum changes only where a tensor begins or ends, so the work is by tensors, not by
    ranks.
    """
    changes: Counter[int] = Counter()  # rank → elements that are kept from it on, less those no longer kept
    for group, partition in zip(groups, partitions(groups, world_size), strict=True):
        start = 0
        for numel in group:
            changes[start // partition] += numel
            changes[(start + numel - 1) // partition + 1] -= numel
            start += numel
    if rank is not None:
        return sum(change for first, change in changes.items() if first <= rank)
    return max(itertools.accumulate(changes[first] for first in sorted(changes)))


def _stage_1_and_2(workload: Workload, facts: ModelFacts, rank: int | None) -> list[Item]:
    """Weights whole and flat; master copy, states and (stage 2) gradients of the rank's partition."""
    psi, b, world = facts.numel, workload.weight_bytes, workload.world_size
    groups = facts.groups(workload.weight_decay_groups)
    parts = partitions(groups, world)
    flat = sum(part * world for part in parts)
    own = sum(parts)
    gradients = b * fullest(groups, world, rank)
    items = [
        Item(
            "parameters", b * flat + facts.buffer_bytes, f"whole on every rank in flat buffers, {b} bytes each", ALWAYS
        ),
        Item("temporary", b * max(parts) * world, "a parameter group and its flat copy exist at once", ("setup",)),
        *_reduce_buckets(workload, psi),
    ]
    if zero_of(workload).offload_optimizer != "none":
        return items + _offloaded_1_and_2(workload, facts, own, gradients)
    doubled = 2 if workload.gradient_accumulation_steps > 1 else 1
    states = workload.optimizer.part_bytes(own)
    items += [
        Item("master_weights", 4 * own, f"fp32 clone of this rank's 1/{world}, also when the weights are fp32", ALWAYS),
        Item("optimizer_states", states, f"{workload.optimizer.words}, of this rank's 1/{world}"),
        Item(
            "gradients",
            gradients,
            f"whole tensors that touch this rank's 1/{world}, {b} bytes an element",
            workload.gradient_moments(),
        ),
        Item(
            "temporary",
            _partition_step(workload, max(parts), b),
            "flat gradient of one parameter group, its fp32 form and the optimizer's intermediate results",
            ("step",),
        ),
    ]
    if doubled > 1:
        items.append(
            Item(
                "temporary",
                gradients,
                "gradients of a later micro batch in addition to the accumulated ones",
                ("backward",),
            )
        )
    if zero_of(workload).stage == 1 and (doubled > 1 or not zero_of(workload).buckets.overlap_comm):
        items.append(
            Item(
                "temporary",
                b * psi,
                "stage 1 without overlap_comm, or accumulating, holds all gradients until they are reduced",
                ("backward",),
            )
        )
    return items


def _partition_step(workload: Workload, part: int, b: int) -> int:
    """Largest temporary bytes while one flat partition of `part` elements is updated."""
    converted = 4 * part if b < 4 else 0
    return max(b * part + converted, 4 * part + workload.step_temporaries([part]))


def _offloaded_1_and_2(workload: Workload, facts: ModelFacts, own: int, gradients: int) -> list[Item]:
    """Optimizer partition in host memory (stages 1 and 2 treat nvme like cpu: nothing is written to disk)."""
    b, states = workload.weight_bytes, workload.optimizer.part_bytes(own)
    items = [
        Item("master_weights", 4 * own, "fp32 partition", ALWAYS, "host"),
        Item("optimizer_states", states, f"{workload.optimizer.words}, of the partition", place="host"),
        Item("gradients", 4 * own, "fp32 gradients of the partition, kept between steps", ALWAYS, "host"),
        Item(
            "communication_buckets",
            b * (own + facts.largest),
            "staging copies of updated weights and of the largest gradient",
            ALWAYS,
            "host",
        ),
        Item("communication_buckets", b * facts.largest, "staging copy of the largest gradient", ALWAYS),
    ]
    if workload.gradient_accumulation_steps > 1:
        items.append(Item("gradients", gradients, "accumulated gradients", place="host"))
    return items


def _reduce_buckets(workload: Workload, psi: int) -> list[Item]:
    """Buffers of stages 1 and 2 that gradients are reduced in: allocated as the backward pass starts, then released.

    setup_buckets: reduce_bucket_size elements, twice with overlap_comm; allreduce_bucket flattens the
    slices of one bucket into a third copy.
    """
    b, bucket = workload.weight_bytes, zero_of(workload).buckets.reduce_bucket_size
    count = (
        (2 if zero_of(workload).buckets.overlap_comm else 1) if zero_of(workload).buckets.contiguous_gradients else 0
    )
    reserved, flat = count * bucket, min(bucket, psi)
    why = f"{count} × reduce_bucket_size elements of {b} bytes"
    if workload.device == "cpu" and reserved > psi:
        reserved, why = psi, why + "; on a CPU only the pages that gradients are written to exist"
    if workload.world_size == 1:
        flat = 0
    return [
        Item("communication_buckets", b * reserved, why, BACKWARD_MOMENTS),
        Item("communication_buckets", b * flat, "slices of one bucket flattened to be reduced", BACKWARD_MOMENTS),
    ]


def _stage_3(workload: Workload, facts: ModelFacts) -> list[Item]:
    """Everything partitioned per tensor, rounded up to N; weights gathered for the layers at work."""
    b, world = workload.weight_bytes, workload.world_size
    sizes = [fact.numel for fact in facts.parameters]
    own = sum(math.ceil(numel / world) for numel in sizes)
    whole = sum(numel for numel in sizes if numel <= zero_of(workload).buckets.stage3_param_persistence_threshold)
    place: Home = "host" if zero_of(workload).offload_params != "none" else "device"
    items = [
        Item("parameters", b * own, f"this rank's 1/{world} of every tensor, {b} bytes each", ALWAYS, place),
        Item(
            "parameters",
            b * whole + facts.buffer_bytes,
            "tensors of at most stage3_param_persistence_threshold elements stay whole",
            ALWAYS,
        ),
        *_gathered(workload, facts, whole),
        *_second_copy(workload, facts),
        *_stage_3_buckets(workload, facts.numel),
        *_stage_3_optimizer(workload, facts, own),
    ]
    if zero_of(workload).offload_params == "nvme":
        pool = b * zero_of(workload).nvme_pool_elements
        items.append(Item("communication_buckets", pool, "buffer_count × buffer_size, page-locked", ALWAYS, "host"))
    if not zero_of(workload).zero3_init:
        unsharded = b * (facts.numel - whole)
        items.append(
            Item(
                "temporary",
                unsharded,
                "the whole model is moved to the device before it is partitioned (not with zero.partition_at_load)",
                ("setup",),
            )
        )
    return [
        _on_disk(item)
        if zero_of(workload).offload_params == "nvme" and item.place == "host" and item.category == "parameters"
        else item
        for item in items
    ]


def _gathered(workload: Workload, facts: ModelFacts, whole: int) -> list[Item]:
    """Whole weights held in addition to the partitions.

    partitioned_param_coordinator.py keeps a weight after use when it is used again within
    stage3_max_reuse_distance elements of modules. From the end of the forward pass, a weight x elements
    before the end is reused after 2 x elements (3 x when layers are recomputed), so half (a third) of the
    distance is held; stage3_max_live_parameters bounds prefetching only. Gathering needs the flat buffer and its copy.
    """
    b, buckets = workload.weight_bytes, zero_of(workload).buckets
    rest = facts.numel - whole
    passes = 3 if workload.gradient_checkpointing else 2
    held = min(rest, max(facts.largest, buckets.stage3_max_reuse_distance // passes))
    ahead = min(rest, max(facts.largest, buckets.stage3_prefetch_bucket_size))
    if workload.world_size == 1 and zero_of(workload).offload_params == "none":
        return []
    return [
        Item(
            "gathered_parameters",
            b * held,
            f"weights used again within stage3_max_reuse_distance (÷ {passes}) stay gathered",
            ("forward", "recompute"),
        ),
        Item("gathered_parameters", b * ahead, "weights of the layer at work and those prefetched", BACKWARD_MOMENTS),
    ]


def _second_copy(workload: Workload, facts: ModelFacts) -> list[Item]:
    """hpZ: as a weight is released in the forward pass, its group keeps a second copy, dropped after the step.

    partition_parameters.py `_partition_param_sec`; stage3.py `invalidate_secondary_tensor`, called in `_post_step`.
    """
    group, world = zero_of(workload).hybrid_shard, workload.world_size
    if group is None:
        return []
    own = sum(math.ceil(fact.numel / world) * world // group for fact in facts.parameters)
    why = f"hpZ: a second copy of the weights within {group} ranks, dropped after the step"
    return [Item("gathered_parameters", workload.weight_bytes * own, why)]


def _stage_3_buckets(workload: Workload, psi: int) -> list[Item]:
    """stage3.py: one bucket for the whole run; reduce_scatter_coalesced concatenates its slices into a copy."""
    b, bucket = workload.weight_bytes, zero_of(workload).buckets.reduce_bucket_size
    reserved = bucket if zero_of(workload).buckets.contiguous_gradients else 0
    why = f"reduce_bucket_size elements of {b} bytes, held all the time"
    if workload.device == "cpu" and reserved > psi:
        reserved, why = psi, why + "; on a CPU only the pages that gradients are written to exist"
    return [
        Item("communication_buckets", b * reserved, why, ALWAYS),
        Item(
            "communication_buckets",
            b * min(bucket, psi),
            "slices of one bucket concatenated to be reduced",
            BACKWARD_MOMENTS,
        ),
    ]


def _stage_3_optimizer(workload: Workload, facts: ModelFacts, own: int) -> list[Item]:
    """Master copy, states and gradients of the partitions, on the device or in host memory.

    stage3.py compares `tensor.device` (a torch.device) with a string, which is never equal, so that the
    master copy is a clone in fp32 runs too. Gradients sit in one flat buffer from the start: from the optimizer's
    construction on, when the whole weights that `setup` counts have been partitioned and freed.
    """
    b, states = workload.weight_bytes, workload.optimizer.part_bytes(own)
    place: Home = "device" if zero_of(workload).offload_optimizer == "none" else "host"
    items = [
        Item("master_weights", 4 * own, "fp32 clone of the partitions, also when the weights are fp32", place=place),
        Item("optimizer_states", states, f"{workload.optimizer.words}, of the partitions", place=place),
        Item("gradients", b * own, f"one flat buffer for the partitions, {b} bytes an element", place=place),
    ]
    group = max(_sub_groups(workload, facts))
    if place == "device":
        step = _partition_step(workload, group, b)
        return [
            *items,
            Item(
                "temporary",
                step,
                "flat gradient of one sub-group, its fp32 form and the optimizer's intermediate results",
                ("step",),
            ),
        ]
    items.append(Item("gradients", 4 * own, "fp32 gradients for the optimizer in host memory", ALWAYS, "host"))
    if zero_of(workload).offload_optimizer != "nvme":
        return items
    swapped = [_on_disk(item) if item.category != "gradients" or item.bytes == 4 * own else item for item in items]
    buffers = 4 * group * 4
    return [
        *swapped,
        Item(
            "communication_buckets",
            buffers,
            "pinned buffers for one sub-group's weights, gradients and states",
            ALWAYS,
            "host",
        ),
    ]


def _sub_groups(workload: Workload, facts: ModelFacts) -> list[int]:
    """Partition elements of each sub-group: tensors in order until sub_group_size is reached, per parameter group."""
    found: list[int] = []
    for group in facts.groups(workload.weight_decay_groups):
        size = 0
        for numel in group:
            size += math.ceil(numel / workload.world_size)
            if size >= zero_of(workload).buckets.sub_group_size:
                found.append(size)
                size = 0
        found.append(size)
    return found


def _on_disk(item: Item) -> Item:
    return Item(item.category, item.bytes, item.why + "; in a file", item.moments, "disk")
