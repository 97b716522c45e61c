"""torch's SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from runner.memory.optimizer_states import Kernel, OptimizerStates
from runner.optimizers.base import Optimizer, ParameterGroups

if TYPE_CHECKING:
    import torch

    from runner.config.optimization import OptimizerConfig


@dataclass(frozen=True)
class SgdStates(OptimizerStates):
    """One momentum, or nothing."""

    decays: bool = False

    @override
    def temporaries(self, kernel: Kernel, on_gpu: bool, tensors: list[int]) -> int:
        """torch/optim/sgd.py: weight decay is added to a copy of the gradients, of a group (foreach) or one by one."""
        if kernel == "fused" or not self.decays or not tensors:
            return 0
        return 4 * sum(tensors) if kernel == "foreach" and on_gpu else 4 * max(tensors)


class Sgd(Optimizer):
    """Stochastic gradient descent with momentum."""

    name = "sgd"
    keys = frozenset({"momentum", "fused"})
    words = "torch SGD"

    @override
    def states(self, config: OptimizerConfig) -> OptimizerStates:
        """4 bytes with momentum."""
        kept = 4 if config.momentum else 0
        return SgdStates("SGD: momentum in fp32" if kept else "SGD: nothing", kept, config.weight_decay > 0)

    @override
    def build(self, config: OptimizerConfig, groups: ParameterGroups, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Momentum without Nesterov."""
        import torch

        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=config.fused is True or None)
