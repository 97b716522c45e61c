"""Where a rank stands among the others, what it tells them, and proof that they really work together.

Measured (docs/architecture.md): with a setting missing, accelerate on CPU believes in one process in
every rank and each trains a model of its own, exit status 0. So what was asked for is compared with what
accelerate and torch report, and with a checksum of the parameters over all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from runner.config import plan
from runner.config.schema import RunConfig
from runner.engines.rank import RankEngine, RankError

CHECKSUM_ELEMENTS = 2**22  # summed in float64 at a time: a whole embedding would need gigabytes
Value = TypeVar("Value")


@dataclass(frozen=True)
class RankPlace:
    """A rank among all, and among the data-parallel replicas: the ranks of one replica work on the same rows.

    Attributes:
        data_parallel_rank, data_parallel_size: what rows, shares, throughput and evaluation count.
    """

    rank: int
    world_size: int
    data_parallel_rank: int
    data_parallel_size: int
    device: torch.device

    @classmethod
    def of(cls, config: RunConfig, engine: RankEngine) -> RankPlace:
        """The place of this rank; neighbouring ranks form a replica."""
        accelerator, world = engine.accelerator, plan.world_size(config)
        replicas = plan.data_parallel_size(config)
        rank = int(accelerator.process_index)
        return cls(rank, world, rank // (world // replicas), replicas, accelerator.device)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes the record."""
        return self.rank == 0

    @property
    def reads_are_free(self) -> bool:
        """Whether a value can be read from the device without waiting for it."""
        return self.device.type == "cpu"

    @property
    def speaks_for_replica(self) -> bool:
        """Whether this is the first rank of its replica: what all of its ranks know counts once."""
        return self.rank % (self.world_size // self.data_parallel_size) == 0

    def sum_over_replicas(self, values: list[float]) -> list[float]:
        """Element-wise sum over the data-parallel replicas, in float64; the same on every rank."""
        own = values if self.speaks_for_replica else [0.0] * len(values)
        tensor = torch.tensor(own, dtype=torch.float64, device=self.device)
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]

    def read_with_sum(self, summed: torch.Tensor, own: torch.Tensor) -> tuple[list[float], list[float]]:
        """`summed` over the data-parallel replicas and this rank's `own`, in one read of the device.

        Args:
            summed, own: of one dimension, float64, on this rank's device; `summed` is overwritten.
        """
        if not self.speaks_for_replica:
            summed.zero_()
        if self.world_size > 1:
            dist.all_reduce(summed)
        values = torch.cat([summed, own]).tolist()
        return values[: len(summed)], values[len(summed) :]

    def gather(self, value: Value) -> list[Value]:
        """`value` of every rank, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        gathered: list[Value] = [value] * self.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    def from_main(self, value: Value) -> Value:
        """Rank 0's `value` on every rank."""
        return self.gather(value)[0]


def check_ranks(config: RunConfig, engine: RankEngine) -> None:
    """Compare world size, device and engine with what was asked for.

    Raises:
        RankError: where one differs.
    """
    accelerator = engine.accelerator
    wanted = plan.world_size(config)
    torch_world = dist.get_world_size() if dist.is_initialized() else 1
    if not accelerator.num_processes == torch_world == wanted:
        raise RankError(
            f"asked for {wanted} ranks, accelerate sees {accelerator.num_processes}, torch sees {torch_world}"
        )
    if accelerator.device.type != config.launcher.device:
        raise RankError(f"asked for device {config.launcher.device}, accelerate uses {accelerator.device.type}")
    if accelerator.distributed_type not in engine.distributed_types:
        raise RankError(f"asked for launcher {config.launcher.name}, accelerate runs {accelerator.distributed_type}")


_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes of an element → integers


def parameter_checksum(engine: RankEngine, model: torch.nn.Module) -> list[float]:
    """Sum and sum of squares of all parameters, in float64; partitioned ones are gathered one by one.

    Frozen ones are summed as the integers that their bits are: packed weights may be stored as floats that they are
    not, NaN among them.
    """
    total, squares = 0.0, 0.0
    for parameter in model.parameters():
        with engine.whole(parameter) as whole:
            for part in torch.split(whole.detach().flatten(), CHECKSUM_ELEMENTS):
                values = (part if parameter.requires_grad else part.view(_SAME_SIZE[part.element_size()])).double()
                total, squares = total + values.sum().item(), squares + values.square().sum().item()
    return [total, squares]


def parameter_bits(engine: RankEngine, model: torch.nn.Module) -> int:
    """Checksum of the bits of all parameters, the same in whatever order a device adds up.

    Sums of floats differ in their last digits between GPU models: their order follows the number of multiprocessors.
    Here the bits are added as integers, which wrap around at 2^64, tensor by tensor; the place of a tensor counts.
    """
    total: torch.Tensor | None = None
    for parameter in model.parameters():
        with engine.whole(parameter) as whole:
            bits = whole.detach().flatten().contiguous().view(_SAME_SIZE[whole.element_size()])
            parts = [part.long().sum() for part in torch.split(bits, CHECKSUM_ELEMENTS)]
        for part in parts:
            total = part if total is None else total * 31 + part
    return 0 if total is None else int(total)


def check_equal_parameters(
    place: RankPlace, engine: RankEngine, model: torch.nn.Module, when: str
) -> list[list[float]]:
    """Compare the parameters of all ranks; returns each rank's checksum.

    Raises:
        RankError: when two ranks differ: they trained separate models.
    """
    everyone = place.gather((parameter_checksum(engine, model), parameter_bits(engine, model)))
    checksums = [checksum for checksum, _ in everyone]
    if len({bits for _, bits in everyone}) > 1:
        raise RankError(f"parameters differ between ranks {when}: checksums {checksums}")
    return checksums
