"""torch's Muon for the matrices of the layers, AdamW for everything else."""

from __future__ import annotations

import re
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

_IN_A_LAYER = re.compile(r"(^|\.)\d+\.")  # h.0.attn.c_attn.weight


def is_hidden_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether Muon updates a parameter: a matrix of a numbered layer; embeddings, head and vectors are AdamW's."""
    return len(shape) == 2 and _IN_A_LAYER.search(name) is not None


@dataclass(frozen=True)
class MuonStates(OptimizerStates):
    """One momentum for a matrix, two moments for everything else."""

    @override
    def whole_bytes(self, parameters: Iterable[ParameterFact]) -> int:
        """4 or 8 bytes an element."""
        return sum((4 if is_hidden_matrix(fact.name, fact.shape) else 8) * fact.numel for fact in parameters)

    @override
    def temporaries(self, kernel: Kernel, on_gpu: bool, tensors: list[int]) -> int:
        """torch/optim/_muon.py: the fp32 update of one matrix and up to three bf16 matrices of its size; AdamW's part
        is taken for the whole group's.
        """
        return max(10 * max(tensors, default=0), super().temporaries(kernel, on_gpu, tensors))


class Muon(Optimizer):
    """Jordan and others, "Muon: An optimizer for hidden layers in neural networks" (2024); the learning rate is scaled
    so that updates have AdamW's root mean square (Liu and others, 2025, arXiv:2502.16982): one
    `optimizer.lr` fits both.
    """

    name = "muon"
    keys = frozenset({"betas", "eps", "momentum"})
    words = "torch Muon for the layers' matrices, AdamW for the rest"
    why_whole = "it orthogonalises whole matrices"

    @override
    def states(self, config: OptimizerConfig) -> OptimizerStates:
        """4 bytes for the layers' matrices, 8 for the rest."""
        return MuonStates("Muon: momentum of the layers' matrices; Adam's two moments of the rest; fp32")

    @override
    def build(self, config: OptimizerConfig, groups: ParameterGroups, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Both as one optimizer."""
        import torch

        from runner.optimizers.muon_with_adamw import MuonWithAdamW

        names = {
            id(parameter)
            for name, parameter in model.named_parameters()
            if is_hidden_matrix(name, tuple(parameter.shape))
        }
        # A table of embeddings inside a layer (T5's relative positions) is none of its matrices.
        names -= {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
        matrices: ParameterGroups = []
        rest: ParameterGroups = []
        for group in groups:
            for chosen, wanted in ((matrices, True), (rest, False)):
                own = [parameter for parameter in group["params"] if (id(parameter) in names) is wanted]
                chosen += [{**group, "params": own}] if own else []
        return MuonWithAdamW(config, matrices, rest)
