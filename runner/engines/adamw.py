"""The AdamW that every engine trains with, and the two groups of parameters it gets."""

from __future__ import annotations

from typing import Any

import torch

from runner.config.schema import OptimizerConfig
from runner.engines.rank import RankEngine


def parameter_groups(engine: RankEngine, model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices with weight decay; biases and normalisation weights (fewer than two dimensions) without."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if len(engine.whole_shape(parameter)) >= 2]
    others = [parameter for parameter in trained if len(engine.whole_shape(parameter)) < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def settings(config: OptimizerConfig) -> dict[str, Any]:
    """What every AdamW is told, whoever builds it."""
    return {
        "lr": config.lr,
        "betas": tuple(config.betas),
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }


def torch_adamw(engine: RankEngine, model: torch.nn.Module) -> torch.optim.Optimizer:
    """torch's AdamW. Where nothing else was asked for, torch chooses the kernel: on a GPU foreach, as for DeepSpeed."""
    config = engine.config.optimizer
    groups = parameter_groups(engine, model, config.weight_decay)
    return torch.optim.AdamW(groups, fused=config.fused is True or None, **settings(config))
