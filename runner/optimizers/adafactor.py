"""torch's Adafactor: second moments of a matrix as one number a row and one a column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from runner.memory.facts import ParameterFact
from runner.memory.optimizer_states import Kernel, OptimizerStates
from runner.optimizers.base import Optimizer, ParameterGroups

if TYPE_CHECKING:
    import torch

    from runner.config.optimization import OptimizerConfig


@dataclass(frozen=True)
class FactoredStates(OptimizerStates):
    """Rows and columns of a matrix; a variance for each element of a vector."""

    @override
    def part_bytes(self, elements: int) -> int:
        """Nothing to speak of: one part in the width of the model."""
        return 0

    @override
    def whole_bytes(self, parameters: Iterable[ParameterFact]) -> int:
        """torch/optim/_adafactor.py: row_var has the tensor's shape with 1 as its last dimension, col_var with 1 as the
        one before.
        """
        return sum(
            4 * (fact.numel // fact.shape[-1] + fact.numel // fact.shape[-2] if len(fact.shape) > 1 else fact.numel)
            for fact in parameters
        )

    @override
    def temporaries(self, kernel: Kernel, on_gpu: bool, tensors: list[int]) -> int:
        """The estimate of the variance, which becomes the update, of one tensor at a time."""
        return 2 * 4 * max(tensors, default=0)


class Adafactor(Optimizer):
    """Memory of rows and columns. Its step is the learning rate times the root mean square of each weight."""

    name = "adafactor"
    words = "torch Adafactor"
    why_whole = "its row and column statistics need whole matrices"

    @override
    def states(self, config: OptimizerConfig) -> OptimizerStates:
        """A few bytes for each row and column."""
        return FactoredStates("Adafactor: a variance for each row and column in fp32", 0)

    @override
    def build(self, config: OptimizerConfig, groups: ParameterGroups, model: torch.nn.Module) -> torch.optim.Optimizer:
        """One tensor after the other: the foreach form would need a copy of all gradients."""
        import torch

        return torch.optim.Adafactor(groups, lr=config.lr)
