"""AdamW with states of one byte an element, by bitsandbytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from runner.memory.facts import ParameterFact
from runner.memory.optimizer_states import Kernel, OptimizerStates
from runner.optimizers.adamw import settings
from runner.optimizers.base import Optimizer, ParameterGroups
from runner.optimizers.bitsandbytes_class import bitsandbytes_class

if TYPE_CHECKING:
    import torch

    from runner.config.optimization import OptimizerConfig

# bitsandbytes/optim/optimizer.py, init_state.
SMALLEST_QUANTISED = 4096  # elements; smaller tensors keep fp32 states
BLOCK = 256  # elements with a common fp32 scale


@dataclass(frozen=True)
class BlockwiseStates(OptimizerStates):
    """Two moments, quantised in blocks."""

    @override
    def part_bytes(self, elements: int) -> int:
        """Two bytes an element and two scales a block."""
        return 2 * elements + 2 * 4 * -(-elements // BLOCK)

    @override
    def whole_bytes(self, parameters: Iterable[ParameterFact]) -> int:
        """Small tensors keep 8 bytes an element."""
        return sum(
            8 * fact.numel if fact.numel < SMALLEST_QUANTISED else self.part_bytes(fact.numel) for fact in parameters
        )

    @override
    def temporaries(self, kernel: Kernel, on_gpu: bool, tensors: list[int]) -> int:
        """On a CPU bitsandbytes computes with fp32 copies of one tensor."""
        return 0 if on_gpu else 5 * 4 * max(tensors, default=0)


class AdamW8bit(Optimizer):
    """Dettmers and others: "8-bit Optimizers via Block-wise Quantization" (2021, arXiv:2110.02861)."""

    name = "adamw_8bit"
    keys = frozenset({"betas", "eps"})
    words = "bitsandbytes AdamW8bit"
    package = "bitsandbytes"
    why_whole = "its states are quantised in blocks of whole tensors, and other blocks give other results"

    @override
    def states(self, config: OptimizerConfig) -> OptimizerStates:
        """About 2 bytes an element."""
        return BlockwiseStates("AdamW 8-bit: two moments of one byte, fp32 for small tensors", 2)

    @override
    def build(self, config: OptimizerConfig, groups: ParameterGroups, model: torch.nn.Module) -> torch.optim.Optimizer:
        """bitsandbytes' own class."""
        return bitsandbytes_class("AdamW8bit")(groups, **settings(config))
