"""What really ran, read from the live objects; the configuration only says what was asked for."""

from __future__ import annotations

from typing import Any

import torch

from runner.train.context import RankContext

LINEAR = ("Conv1D", "LinearLayer", "LinearAllreduce")  # linear layers of GPT-2, and those that DeepSpeed has split


def facts(context: RankContext) -> dict[str, Any]:
    """The record's `observed`: launcher, device, classes and number formats as rank 0 sees them."""
    prepared, optimizer = context.prepared, context.prepared.base_optimizer
    first = next(prepared.bare.parameters())
    return {
        "distributed_type": str(context.engine.accelerator.distributed_type.value),
        "device": str(context.place.device.type),
        "world_size": context.place.world_size,
        "zero_stage": context.engine.partition_stage,
        "optimizer_class": f"{type(optimizer).__module__.split('.')[0]}.{type(optimizer).__name__}",
        "optimizer_fused": bool(optimizer.param_groups[0].get("fused")),
        "optimizer_state_dtype": _state_dtype(optimizer),
        "scheduler_class": type(prepared.schedule).__name__,
        "parameter_dtype": _name(first.dtype),
        "gradient_dtype": _name(first.dtype),
        "activation_dtype": context.activation_dtype,
    }


def _state_dtype(optimizer: torch.optim.Optimizer) -> str | None:
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.ndim:
                return _name(value.dtype)
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def watch_activations(context: RankContext) -> None:
    """Note the number format of the first linear layer's output in the first forward pass, then stop watching."""
    layer = next(
        module
        for module in context.prepared.bare.modules()
        if isinstance(module, torch.nn.Linear) or type(module).__name__ in LINEAR
    )

    def note(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> None:
        context.activation_dtype = _name(output.dtype)
        handle.remove()

    handle = layer.register_forward_hook(note)
