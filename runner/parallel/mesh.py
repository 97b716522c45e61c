"""The mesh of ranks: which degrees a run has, whether they fit its ranks, and how they are named.

Neighbouring ranks form the inner groups: ranks 0 … K−1 are the first group of a degree K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.errors import Problem

if TYPE_CHECKING:
    from runner.parallel.config import ParallelConfig

# Degree → how a method's name says it, and what can be typed instead where a launcher cannot carry it out.
NAMES = {"hybrid_shard": "hybrid shard", "tensor": "tensor"}
CARRIED_BY = {
    "hybrid_shard": "use launcher=fsdp, or launcher=deepspeed zero_stage=3",
    "tensor": "use launcher=deepspeed",
}


@dataclass(frozen=True)
class Mesh:
    """Ranks and the degrees they are split by.

    Attributes:
        world: ranks over all machines.
        hybrid_shard: ranks of a group that shards; None where all do.
        tensor: ranks that share every layer, and see the same rows.
        per_machine: ranks of one machine; None: all are on one.
    """

    world: int
    hybrid_shard: int | None = None
    tensor: int = 1
    per_machine: int | None = None

    @classmethod
    def of(cls, world: int, degrees: ParallelConfig, per_machine: int) -> Mesh:
        """The mesh of a configuration on `world` ranks."""
        return cls(world, degrees.hybrid_shard, degrees.tensor, per_machine)

    @property
    def data(self) -> int:
        """Replicas that see rows of their own."""
        return max(1, self.world // self.tensor)

    @property
    def shard(self) -> int:
        """Ranks that a replicated training state is cut over."""
        return self.hybrid_shard or self.data

    @property
    def groups(self) -> int:
        """Groups of `shard` ranks, each with the whole training state."""
        return self.data // self.shard

    def problems(self) -> list[Problem]:
        """Degrees that do not fit the ranks."""
        return self._tensor_problems() or self._hybrid_problems()

    def _tensor_problems(self) -> list[Problem]:
        key, degree, here = "parallel.tensor", self.tensor, self.per_machine or self.world
        if self.world % degree:
            why = f"{self.world} ranks cannot be grouped by {degree}"
            return [Problem(key, degree, why, _nearest(key, degree, self.world, also_all=True))]
        if here % degree:
            why = f"a group has to be on one machine, and {here} ranks of a machine cannot be grouped by {degree}"
            return [Problem(key, degree, why, _nearest(key, degree, here, also_all=True))]
        return []

    def _hybrid_problems(self) -> list[Problem]:
        degree, key = self.hybrid_shard, "parallel.hybrid_shard"
        if degree is None:
            return []
        if degree == self.world:
            fix = f"leave it out, or use launcher.num_processes={2 * degree}"
            return [Problem(key, degree, f"this has no effect: these are all {self.world} ranks", fix)]
        if self.world % degree:
            why = f"{self.world} ranks cannot be grouped by {degree}"
            return [Problem(key, degree, why, _nearest(key, degree, self.world))]
        return []


def _nearest(key: str, degree: int, world: int, also_all: bool = False) -> str:
    """The next smaller and the next larger degree that group the ranks, and a number of ranks that would do."""
    fitting = [size for size in range(2, world + also_all) if world % size == 0]
    near = [*[size for size in fitting if size < degree][-1:], *[size for size in fitting if size > degree][:1]]
    choices = [*[f"{key}={size}" for size in near], f"launcher.num_processes={2 * degree}"]
    return "use " + " or ".join(choices)


def shown_degrees(largest: int, ranks: int) -> list[int]:
    """The degrees that a table of alternatives shows: 2, 4 and 8 as far as they group `ranks`."""
    return [degree for degree in (2, 4, 8) if degree <= largest and ranks % degree == 0]


def words(degrees: Mapping[str, object]) -> str:
    """What a method's name says of its degrees: ` + hybrid shard 4`; never raises, as records may be damaged."""
    found = {name: degrees.get(key) for key, name in NAMES.items()}
    return "".join(f" + {name} {size}" for name, size in found.items() if isinstance(size, int) and size > 1)
