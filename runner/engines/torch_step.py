"""Steps of torch's own optimizer under accelerate, for engines that do not bring a step of their own."""

from __future__ import annotations

import math

import torch
from accelerate import Accelerator
from accelerate.utils import GradScalerKwargs, KwargsHandler

from runner.config.schema import PrecisionConfig
from runner.engines.rank import Factor, GradientNorm, Prepared


def scaler_settings(precision: PrecisionConfig) -> list[KwargsHandler]:
    """torch's loss scaler of fp16 with the configured numbers."""
    given = {
        "init_scale": 2.0**precision.initial_scale_power if precision.initial_scale_power is not None else None,
        "growth_interval": precision.loss_scale_window,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return [GradScalerKwargs(**chosen)] if chosen else []


def prepare(
    accelerator: Accelerator, model: torch.nn.Module, optimizer: torch.optim.Optimizer, factor: Factor
) -> Prepared:
    """Model and optimizer through accelerate, with a schedule that does not move when a step was skipped."""
    wrapped_model, wrapped = accelerator.prepare(model, optimizer)
    base: torch.optim.Optimizer = getattr(wrapped, "optimizer", optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(base, factor)

    def step() -> None:
        if not accelerator.optimizer_step_was_skipped:
            scheduler.step()

    bare = accelerator.unwrap_model(wrapped_model)
    return Prepared(wrapped_model, bare, wrapped, base, scheduler, scheduler, step)


def step(accelerator: Accelerator, prepared: Prepared, clipping: float) -> GradientNorm:
    """Clip to a norm (0: only measure it), step, clear gradients."""
    limit = clipping if clipping > 0 else math.inf
    norm: GradientNorm = accelerator.clip_grad_norm_(prepared.model.parameters(), limit)
    prepared.optimizer.step()
    prepared.optimizer.zero_grad()
    prepared.step_scheduler()
    return norm
