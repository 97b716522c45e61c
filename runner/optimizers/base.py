"""What the rest of the runner may ask an optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from runner.memory.optimizer_states import OptimizerStates

if TYPE_CHECKING:
    import torch

    from runner.config.optimization import OptimizerConfig

ParameterGroups = list[dict[str, Any]]  # as torch takes them, each with its own weight_decay


class Optimizer(ABC):
    """One optimizer.

    Attributes:
        keys: keys of the section `optimizer` that only some optimizers read, those that this one does.
        words: what is said in the plan, library first.
        package: what has to be installed beside torch, if anything; also the name of its extra.
        deepspeed_owns: whether DeepSpeed's JSON has a block for it whose arithmetic is the same.
        why_whole: why it needs every tensor whole on each rank, if so: then ZeRO 1–3 and FSDP are refused.
        why_no_shards: why it cannot step over the shards (DTensors) of FSDP, if so.
        fused_on_shards: whether its fused kernel can.
    """

    name: ClassVar[str]
    keys: ClassVar[frozenset[str]] = frozenset()
    words: ClassVar[str]
    package: ClassVar[str | None] = None
    deepspeed_owns: ClassVar[bool] = False
    why_whole: ClassVar[str | None] = None
    why_no_shards: ClassVar[str | None] = None
    fused_on_shards: ClassVar[bool] = False

    @abstractmethod
    def states(self, config: OptimizerConfig) -> OptimizerStates:
        """What it keeps, for the memory estimate and the space that checkpoints need."""

    @abstractmethod
    def build(self, config: OptimizerConfig, groups: ParameterGroups, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The optimizer over these groups; `config` is resolved.

        Args:
            model: whose parameters the groups hold, where names or modules matter.
        """

    @property
    def has_fused(self) -> bool:
        """Whether there is a fused kernel to choose."""
        return "fused" in self.keys
