"""What is to be estimated: everything memory depends on, and nothing else.

A `Workload` is a value: two equal workloads need the same memory. How training state is laid out over ranks and hosts
is its engine's business (`StateLayout`). This module imports neither torch nor transformers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

from runner.memory.facts import Architecture, ModelFacts
from runner.memory.items import Item, Moment
from runner.memory.optimizer_states import ADAMW_STATES, GRADIENT_MOMENTS, Kernel, OptimizerStates
from runner.parallel.tensor import local_facts

Precision = Literal["fp32", "bf16", "fp16"]
DeviceType = Literal["cpu", "cuda"]

BYTES_PER_ELEMENT: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
FALLBACK_LENGTH = 128
CPU_PROCESS_BYTES = 400 * 2**20  # docs/memory.md says where it comes from


@dataclass(frozen=True)
class StateLayout(ABC):
    """Where an engine keeps weights, gradients and optimizer states of one rank, and in which format."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The method's name in tables, e.g. `ZeRO-2 + CPU optimizer offload`."""

    @abstractmethod
    def items(self, workload: Workload, facts: ModelFacts, rank: int | None) -> list[Item]:
        """Items of training state of one rank; of the fullest with None."""

    @abstractmethod
    def weight_bytes(self, precision: Precision) -> int:
        """Bytes of one element of the weights that the forward pass reads."""

    @property
    def tensor_ranks(self) -> int:
        """Ranks that share every layer."""
        return 1

    def compute_precision(self, precision: Precision, device: DeviceType) -> Precision:
        """Format that is really computed in."""
        return precision

    def autocast(self, precision: Precision) -> bool:
        """Whether weights stay fp32 and autocast makes half-precision copies of them."""
        return False

    @property
    def differs_by_rank(self) -> bool:
        """Whether ranks hold different amounts."""
        return False

    @property
    def loads_whole_model(self) -> bool:
        """Whether every rank holds the whole model in host memory while it is loaded."""
        return True

    @property
    def in_host_memory(self) -> Literal["", "optimizer", "all"]:
        """What lives in host memory or on a disk instead of the device."""
        return ""

    @property
    def process_bytes(self) -> int:
        """Resident bytes of a CPU rank's interpreter and libraries (a stated allowance)."""
        return CPU_PROCESS_BYTES

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Its settings for JSON output, `launcher` among them."""


@dataclass(frozen=True)
class Workload:
    """One training step of one rank, as far as memory is concerned. Lengths are tokens, batches are rows."""

    architecture: Architecture
    layout: StateLayout
    micro_batch_size: int = 8
    source_length: int = FALLBACK_LENGTH
    target_length: int = 0
    length_source: str = "given"
    precision: Precision = "fp32"
    device: DeviceType = "cuda"
    gradient_checkpointing: bool = False
    gradient_accumulation_steps: int = 1
    num_processes: int = 2
    num_nodes: int = 1
    weight_decay_groups: bool = True
    margin_fraction: float = 0.1
    optimizer: OptimizerStates = ADAMW_STATES
    optimizer_kernel: Kernel = "foreach"
    caveats: tuple[str, ...] = ()  # what the estimate does not know of this run

    @property
    def world_size(self) -> int:
        """Ranks over all machines."""
        return self.num_processes * self.num_nodes

    @property
    def local_architecture(self) -> Architecture:
        """The part of the model that a rank works on."""
        if self.layout.tensor_ranks == 1:
            return self.architecture
        facts = local_facts(self.architecture.mapping(), self.layout.tensor_ranks)
        return Architecture.of(self.architecture.family, facts, self.architecture.num_labels)

    @property
    def compute_precision(self) -> Precision:
        """Format really computed in."""
        return self.layout.compute_precision(self.precision, self.device)

    @property
    def autocast(self) -> bool:
        """Whether weights stay fp32 and autocast makes half-precision copies."""
        return self.layout.autocast(self.compute_precision)

    @property
    def weight_bytes(self) -> int:
        """Bytes of one element of the weights the forward pass reads."""
        return self.layout.weight_bytes(self.precision)

    def step_temporaries(self, tensors: list[int]) -> int:
        """Bytes that the optimizer allocates while it steps over tensors of these sizes (elements), one group."""
        return self.optimizer.temporaries(self.optimizer_kernel, self.device == "cuda", tensors)

    def gradient_moments(self, zeroed_in_place: bool = False) -> tuple[Moment, ...]:
        """Gradients outlive a forward pass when micro batches accumulate or when they are zeroed in place."""
        kept = self.gradient_accumulation_steps > 1 or zeroed_in_place
        return ("forward", "recompute", *GRADIENT_MOMENTS) if kept else GRADIENT_MOMENTS

    def with_batch(self, micro_batch_size: int) -> Workload:
        """The same workload with another micro batch size."""
        return replace(self, micro_batch_size=micro_batch_size)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; the architecture facts appear as a mapping, the layout's settings beside the others."""
        out = asdict(self)
        del out["layout"]
        out["architecture"]["facts"] = self.architecture.mapping()
        return out | self.layout.described() | {"world_size": self.world_size}


@runtime_checkable
class DataLengths(Protocol):
    """Lengths of the tokenised data, where it is available (tokens of the longest row of any batch)."""

    @property
    def longest_source(self) -> int: ...  # noqa: D102

    @property
    def longest_target(self) -> int: ...  # noqa: D102

    @property
    def description(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class MeasuredLengths:
    """Token lengths read from data. `description` says from which, e.g. `longest of 3,668 rows of train`."""

    longest_source: int
    longest_target: int = 0
    description: str = "longest row of the tokenised data"
