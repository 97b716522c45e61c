"""Who builds the optimizer and who moves the learning rate.

Four mixes under DeepSpeed, one under DDP. The learning rate at optimizer step k is
`plan.learning_rate_factor(k) × lr` in each, to the last bit (a test holds this).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator

from runner.config import plan
from runner.config.schema import OptimizerConfig, RunConfig


@dataclass
class Prepared:
    """Model and optimizer after `accelerator.prepare`.

    Attributes:
        model: the DDP module or the DeepSpeed engine.
        optimizer: accelerate's wrapper.
        base_optimizer: the torch (or DeepSpeed CPU Adam) optimizer whose param_groups hold the learning rate.
        scheduler: what state has to be saved; None where DeepSpeed's engine saves it.
        step_scheduler: moves the learning rate on; does nothing where the engine has done it.
    """

    model: Any
    optimizer: Any
    base_optimizer: torch.optim.Optimizer
    scheduler: Any
    step_scheduler: Callable[[], None]

    @property
    def learning_rate(self) -> float:
        """The rate the next optimizer step uses."""
        return float(self.base_optimizer.param_groups[0]["lr"])


def parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices with weight decay; biases and normalisation weights (fewer than two dimensions) without."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if _dimensions(parameter) >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if _dimensions(parameter) < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _dimensions(parameter: torch.nn.Parameter) -> int:
    """Dimensions of the whole parameter, also where ZeRO-3 has partitioned it."""
    return len(getattr(parameter, "ds_shape", parameter.shape))


def prepare(config: RunConfig, accelerator: Accelerator, model: torch.nn.Module, total_steps: int) -> Prepared:
    """Build optimizer and scheduler for their owners and hand everything to accelerate."""
    factor = partial(
        plan.learning_rate_factor,
        name=config.scheduler.name,
        warmup_steps=config.scheduler.warmup_steps,
        total=total_steps,
    )
    optimizer = _optimizer(config.optimizer, model)
    if config.launcher.name == "ddp":
        return _prepare_ddp(accelerator, model, optimizer, factor)
    return _prepare_deepspeed(config, accelerator, model, optimizer, factor)


def _optimizer(config: OptimizerConfig, model: torch.nn.Module) -> Any:
    groups = parameter_groups(model, config.weight_decay)
    options: dict[str, Any] = {"lr": config.lr, "betas": tuple(config.betas), "eps": config.eps}
    if config.owner == "deepspeed":
        from accelerate.utils import DummyOptim  # is only there where DeepSpeed is installed

        return DummyOptim(groups, weight_decay=config.weight_decay, **options)
    return torch.optim.AdamW(
        groups, weight_decay=config.weight_decay, fused=config.fused is True or None, **options
    )  # None: torch chooses, on a GPU its foreach kernels, as for DeepSpeed


def _prepare_ddp(
    accelerator: Accelerator, model: torch.nn.Module, optimizer: torch.optim.Optimizer, factor: Callable[[int], float]
) -> Prepared:
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    wrapped_model, wrapped_optimizer = accelerator.prepare(model, optimizer)

    def step() -> None:
        if not accelerator.optimizer_step_was_skipped:
            scheduler.step()

    return Prepared(wrapped_model, wrapped_optimizer, optimizer, scheduler, step)


def _prepare_deepspeed(
    config: RunConfig, accelerator: Accelerator, model: torch.nn.Module, optimizer: Any, factor: Callable[[int], float]
) -> Prepared:
    from accelerate.utils import DummyScheduler

    owners = (config.optimizer.owner, config.scheduler.owner)
    if owners == ("client", "client"):
        engine, wrapped = accelerator.prepare(model, optimizer)
        return _client_schedule(engine, wrapped, factor)
    if config.scheduler.owner == "deepspeed":
        placeholder = DummyScheduler(optimizer)
    else:
        placeholder = DummyScheduler(
            optimizer, lr_scheduler_callable=lambda built: torch.optim.lr_scheduler.LambdaLR(built, factor)
        )
    engine, wrapped, _ = accelerator.prepare(model, optimizer, placeholder)
    if config.scheduler.owner == "deepspeed":
        _start_at_first_index(engine.lr_scheduler)
    return Prepared(engine, wrapped, engine.basic_optimizer, None, lambda: None)


def _client_schedule(engine: Any, wrapped: Any, factor: Callable[[int], float]) -> Prepared:
    """A torch scheduler on the optimizer that the engine really uses (accelerate may have swapped in CPU Adam)."""
    scheduler = torch.optim.lr_scheduler.LambdaLR(engine.basic_optimizer, factor)

    def step() -> None:
        if not getattr(engine.optimizer, "overflow", False):
            scheduler.step()

    return Prepared(engine, wrapped, engine.basic_optimizer, scheduler, step)


def _start_at_first_index(scheduler: Any) -> None:
    """DeepSpeed's schedules start before index 0, so that their first two optimizer steps share index 0; start at 0."""
    if scheduler is not None and scheduler.last_batch_iteration < 0:
        scheduler.step(0)
