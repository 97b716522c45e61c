"""torch's AdamW."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from runner.memory.optimizer_states import ADAMW_STATES, OptimizerStates
from runner.optimizers.base import Optimizer, ParameterGroups

if TYPE_CHECKING:
    import torch

    from runner.config.optimization import OptimizerConfig


class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    name = "adamw"
    keys = frozenset({"betas", "eps", "fused"})
    words = "torch AdamW"
    deepspeed_owns = True
    fused_on_shards = True

    @override
    def states(self, config: OptimizerConfig) -> OptimizerStates:
        """Two moments."""
        return ADAMW_STATES

    @override
    def build(self, config: OptimizerConfig, groups: ParameterGroups, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Where nothing else was asked for, torch chooses the kernel."""
        import torch

        return torch.optim.AdamW(groups, fused=config.fused is True or None, **settings(config))


def settings(config: OptimizerConfig) -> dict[str, Any]:
    """What every AdamW is told, whoever builds it."""
    return {"lr": config.lr, "betas": tuple(config.betas), "eps": config.eps, "weight_decay": config.weight_decay}
