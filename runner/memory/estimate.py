"""The estimate: items of one rank, the moment at which their sum is largest, and the sum per host."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from runner.config.schema import RunConfig
from runner.config.sequence_limits import position_limit
from runner.memory.activations import Activations, activations
from runner.memory.architecture import model_facts
from runner.memory.configured import workload_from_config
from runner.memory.facts import ModelFacts
from runner.memory.items import ALWAYS, CATEGORIES, Home, Item, Moment
from runner.memory.workload import DataLengths, Workload

MIB = 2**20
# Stated allowances, not measurements of any particular run; docs/memory.md says where they come from.
CUDA_CONTEXT_BYTES = 512 * MIB
CUBLAS_WORKSPACE_BYTES = 32 * MIB
NCCL_BYTES = 256 * MIB
CUDA_HOST_PROCESS_BYTES = 2048 * MIB

EXCLUDED = (
    "fragmentation of the CUDA caching allocator beyond the margin",
    "activation gradients beyond two of the widest tensors",
    "rounding of pinned host buffers to powers of two",
    "page cache of weight and data files, tokenised data, data loader workers",
    "evaluation and generation (another batch size, no gradients)",
)


@dataclass(frozen=True)
class MemoryEstimate:
    """Itemised memory of one rank of a workload. All sizes are bytes."""

    workload: Workload
    num_parameters: int
    items: tuple[Item, ...]
    activations: Activations
    notes: tuple[str, ...] = ()

    def at(self, moment: Moment, place: Home = "device") -> int:
        """Bytes that exist at one moment."""
        return sum(item.bytes for item in self.items if moment in item.moments and item.place == place)

    @property
    def peak_moment(self) -> Moment:
        """Moment with the largest sum on the device."""
        return max(ALWAYS, key=self.at)

    @property
    def device_bytes_per_rank(self) -> int:
        """Largest sum on the device, framework overhead included."""
        return self.at(self.peak_moment)

    @property
    def allocated_bytes_per_rank(self) -> int:
        """What a run measures: on a GPU the tensors (torch.cuda.max_memory_allocated), on a CPU the resident set."""
        if self.workload.device == "cpu":
            return max(self.at(moment) + self.at(moment, "host") for moment in ALWAYS)
        return max(self._tensors(moment) for moment in ALWAYS)

    def _tensors(self, moment: Moment) -> int:
        outside = sum(self.category_at(name, moment) for name in ("framework", "margin"))
        return self.at(moment) - outside

    @property
    def host_bytes_per_rank(self) -> int:
        """Largest sum in host memory of one rank: all of it when ranks run on a CPU."""
        if self.workload.device == "cpu":
            return self.allocated_bytes_per_rank
        return max(self.at(moment, "host") for moment in ALWAYS)

    @property
    def host_bytes(self) -> int:
        """Host memory of one machine, all its ranks together."""
        return self.host_bytes_per_rank * self.workload.num_processes

    def largest_of(self, category: str, place: Home = "device") -> int:
        """Bytes of a category at the moment when that category is largest."""
        chosen = [item for item in self.items if item.category == category and item.place == place]
        return max((sum(item.bytes for item in chosen if moment in item.moments) for moment in ALWAYS), default=0)

    def category_at(self, category: str, moment: Moment, place: Home = "device") -> int:
        """Bytes of a category at one moment."""
        return sum(i.bytes for i in self.items if i.category == category and i.place == place and moment in i.moments)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: totals, moments, categories and every item with its reason."""
        return {
            "workload": self.workload.as_dict(),
            "num_parameters": self.num_parameters,
            "device_bytes_per_rank": self.device_bytes_per_rank,
            "allocated_bytes_per_rank": self.allocated_bytes_per_rank,
            "host_bytes_per_rank": self.host_bytes_per_rank,
            "host_bytes": self.host_bytes,
            "peak_moment": self.peak_moment,
            "moments": {moment: self.at(moment) for moment in ALWAYS},
            "categories": {name: self.category_at(name, self.peak_moment) for name in CATEGORIES},
            "host_categories": {name: self.largest_of(name, "host") for name in CATEGORIES},
            "items": [vars(item) | {"moments": list(item.moments)} for item in self.items],
            "sequence_length": {
                "source": self.workload.source_length,
                "target": self.workload.target_length,
                "from": self.workload.length_source,
            },
            "notes": list(self.notes),
            "excluded": list(EXCLUDED),
        }


def estimate(workload: Workload, rank: int | None = None) -> MemoryEstimate:
    """What one rank of `workload` needs, itemised: rank `rank`, or the fullest.

    Raises ValueError for an architecture that transformers cannot build, and when a length exceeds the model's
    positions.
    """
    facts = model_facts(workload.architecture)
    _check_lengths(workload, facts)
    counted = activations(workload)
    items = [
        *_states(workload.with_batch(0), rank),
        *_activation_items(workload, counted),
        *_framework_items(workload, facts),
    ]
    items += _margin(workload, items)
    present = tuple(item for item in items if item.bytes > 0)
    return MemoryEstimate(workload, facts.numel, present, counted, tuple(_notes(workload)))


@functools.lru_cache(maxsize=256)
def _states(workload: Workload, rank: int | None) -> tuple[Item, ...]:
    """State items; they are the same for every batch size, so that a search computes them once."""
    return tuple(workload.layout.items(workload, _local_facts(workload), rank))


def _local_facts(workload: Workload) -> ModelFacts:
    """Parameters of the part of the model that a rank works on; an output layer of its own is cut by words."""
    facts, ranks = model_facts(workload.local_architecture), workload.layout.tensor_ranks
    if ranks == 1:
        return facts
    cut = tuple(
        replace(fact, numel=fact.numel // fact.rows * -(-fact.rows // ranks), rows=-(-fact.rows // ranks))
        if fact.name == "lm_head.weight"
        else fact
        for fact in facts.parameters
    )
    return replace(facts, parameters=cut)


def predict_for_record(config: RunConfig, world_size: int, lengths: DataLengths | None = None) -> dict[str, Any]:
    """`memory_prediction` of a run's record: `per_rank_bytes` (comparable with `peak_memory_bytes`) and the items.

    Raises ValueError as `estimate` and `workload_from_config` do.
    """
    workload = workload_from_config(config, world_size, lengths)
    ranks = (
        [estimate(workload, rank) for rank in range(world_size)]
        if workload.layout.differs_by_rank
        else [estimate(workload)] * world_size
    )
    first = ranks[0]
    return {
        "per_rank_bytes": [each.allocated_bytes_per_rank for each in ranks],
        "per_rank_device_bytes": [each.device_bytes_per_rank for each in ranks],
        "per_host_bytes": first.host_bytes,
        "compared_with": "resident set" if workload.device == "cpu" else "bytes allocated by torch",
        "peak_moment": first.peak_moment,
        "categories": first.as_dict()["categories"],
        "items": first.as_dict()["items"],
        "sequence_length": first.as_dict()["sequence_length"],
    }


def _activation_items(workload: Workload, counted: Activations) -> Iterable[Item]:
    """What the forward pass leaves for the backward pass, and what the backward pass adds while it is all there."""
    rows = f"{workload.micro_batch_size} rows of {_tokens(workload)} tokens"
    during: tuple[Moment, ...] = ("forward", "recompute")
    yield Item("activations", counted.kept, f"tensors autograd keeps, {rows}", during)
    yield Item("logits", counted.logits, f"logits and their softmax, {rows}", during)
    yield Item(
        "autocast_copies",
        counted.autocast_cache,
        "half-precision copies of the weights that matrix products read",
        ("forward",),
    )
    gradient = max(counted.logits_gradient, 2 * counted.widest)
    yield Item(
        "temporary", gradient, "gradient of the logits, or of the widest activation with its input's", ("forward",)
    )
    if workload.gradient_checkpointing:
        yield Item("activations", counted.layer, "one layer, recomputed", ("recompute",))
        yield Item(
            "autocast_copies", counted.autocast_copies, "weight copies outside the recomputed layers", ("recompute",)
        )
        yield Item(
            "temporary",
            2 * counted.widest_recomputed,
            "gradient of the widest activation with its input's",
            ("recompute",),
        )


def _tokens(workload: Workload) -> str:
    return (
        f"{workload.source_length} + {workload.target_length}"
        if workload.target_length
        else str(workload.source_length)
    )


def _framework_items(workload: Workload, facts: ModelFacts) -> Iterable[Item]:
    """Stated allowances for what is no tensor of the run, and the weights in host memory while they are loaded."""
    if workload.device == "cpu":
        yield Item(
            "framework", workload.layout.process_bytes, "interpreter and libraries, resident (allowance)", ALWAYS
        )
        return
    yield Item("framework", CUDA_CONTEXT_BYTES, "CUDA context (allowance)", ALWAYS)
    yield Item("framework", CUBLAS_WORKSPACE_BYTES, "cuBLAS workspace (allowance)", ALWAYS)
    if workload.world_size > 1:
        yield Item("framework", NCCL_BYTES, "NCCL channels (allowance)", ALWAYS)
    yield Item(
        "framework", CUDA_HOST_PROCESS_BYTES, "interpreter, libraries and CUDA's host side (allowance)", ALWAYS, "host"
    )
    if workload.layout.loads_whole_model:
        yield Item(
            "temporary",
            4 * facts.numel,
            "every rank loads the weights in fp32 before they go to the device",
            ("setup",),
            "host",
        )


def _margin(workload: Workload, items: list[Item]) -> list[Item]:
    """What the CUDA caching allocator cannot use: the device is filled to 90 %, as accelerate and transformers do.

    Both reserve a tenth of a GPU when they place a model (`max_memory *= 0.9`, accelerate/utils/modeling.py);
    batches of changing length leave blocks that fit no later tensor.
    """
    fraction = workload.margin_fraction
    if workload.device == "cpu" or fraction <= 0:
        return []
    sums = {
        moment: sum(item.bytes for item in items if moment in item.moments and item.place == "device")
        for moment in ALWAYS
    }
    why = f"{fraction:.0%} of the device left free for fragmentation, as accelerate does when it places a model"
    return [Item("margin", int(size * fraction / (1 - fraction)), why, (moment,)) for moment, size in sums.items()]


def _check_lengths(workload: Workload, facts: ModelFacts) -> None:
    longest = max(workload.source_length, workload.target_length)
    # Encoders with relative positions have a figure of the class that limits nothing: there, only what the facts say.
    limit = (
        position_limit(workload.architecture.mapping())
        if workload.architecture.family == "encoder"
        else facts.max_positions
    )
    if limit and longest > limit:
        raise ValueError(f"{longest} tokens are more than the model's {limit} positions")


def _notes(workload: Workload) -> Iterable[str]:
    yield from workload.caveats
    yield f"sequence length: {_tokens(workload)} tokens, {workload.length_source}"
    if workload.precision != workload.compute_precision:
        yield f"{workload.layout.label} on a CPU ignores fp16: everything is computed in fp32"
    if workload.length_source.startswith(("configured", "assumed")):
        yield "a batch is as long as its longest row: real rows that are shorter need less"
