"""The optimizer that a rank builds, and the two groups of parameters it gets."""

from __future__ import annotations

from typing import Any

import torch

from runner.engines.rank import RankEngine
from runner.optimizers import optimizer_of


def parameter_groups(engine: RankEngine, model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices with weight decay; biases and normalisation weights (fewer than two dimensions) without."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if len(engine.whole_shape(parameter)) >= 2]
    others = [parameter for parameter in trained if len(engine.whole_shape(parameter)) < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def client_optimizer(engine: RankEngine, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The configured optimizer over both groups."""
    config = engine.config.optimizer
    return optimizer_of(config).build(config, parameter_groups(engine, model, config.weight_decay), model)
