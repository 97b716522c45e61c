"""What an optimizer keeps for each weight and needs while it steps, whichever engine calls it.

`OptimizerStates` is a value that a workload holds; each optimizer has its own (runner/optimizers).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from runner.memory.facts import ParameterFact
from runner.memory.items import Moment

GRADIENT_MOMENTS: tuple[Moment, ...] = ("backward", "step")
Kernel = Literal["foreach", "loop", "fused"]


@dataclass(frozen=True)
class OptimizerStates:
    """An optimizer that treats every element alike. As it stands: AdamW.

    Attributes:
        words: what is kept, for the table.
        element_bytes: a trained element.
    """

    words: str = "Adam: momentum and variance in fp32"
    element_bytes: int = 8

    def part_bytes(self, elements: int) -> int:
        """Bytes of states of a flat or sharded part of the weights."""
        return self.element_bytes * elements

    def whole_bytes(self, parameters: Iterable[ParameterFact]) -> int:
        """Bytes of states where every tensor is whole."""
        return self.part_bytes(sum(fact.numel for fact in parameters))

    def temporaries(self, kernel: Kernel, on_gpu: bool, tensors: list[int]) -> int:
        """Bytes allocated while it steps over tensors of these sizes (elements), one parameter group.

        torch/optim/adam.py: the foreach form (default on CUDA) holds a square root of every second moment of the
        group at once; the loop (default on CPU) holds two temporaries of one tensor; fused kernels hold nothing.
        """
        if kernel == "fused" or not tensors:
            return 0
        return 4 * sum(tensors) if kernel == "foreach" and on_gpu else 2 * 4 * max(tensors)


ADAMW_STATES = OptimizerStates()
