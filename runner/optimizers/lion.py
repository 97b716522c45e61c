"""Lion, by bitsandbytes: the sign of a momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from runner.memory.optimizer_states import Kernel, OptimizerStates
from runner.optimizers.base import Optimizer, ParameterGroups
from runner.optimizers.bitsandbytes_class import bitsandbytes_class

if TYPE_CHECKING:
    import torch

    from runner.config.optimization import OptimizerConfig


@dataclass(frozen=True)
class KernelStates(OptimizerStates):
    """Updated in place by one kernel on a GPU."""

    @override
    def temporaries(self, kernel: Kernel, on_gpu: bool, tensors: list[int]) -> int:
        """On a CPU bitsandbytes computes with copies of one tensor."""
        return 0 if on_gpu else 3 * 4 * max(tensors, default=0)


class Lion(Optimizer):
    """Chen and others: "Symbolic Discovery of Optimization Algorithms" (2023, arXiv:2302.06675)."""

    name = "lion"
    keys = frozenset({"betas"})
    words = "bitsandbytes Lion"
    package = "bitsandbytes"
    why_no_shards = "bitsandbytes' kernels do not know torch's sharded tensors"

    @override
    def states(self, config: OptimizerConfig) -> OptimizerStates:
        """One momentum."""
        return KernelStates("Lion: momentum in fp32", 4)

    @override
    def build(self, config: OptimizerConfig, groups: ParameterGroups, model: torch.nn.Module) -> torch.optim.Optimizer:
        """In 32 bits; bitsandbytes' decay is decoupled."""
        return bitsandbytes_class("Lion")(groups, lr=config.lr, betas=tuple(config.betas), optim_bits=32)
