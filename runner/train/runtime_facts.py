"""What really ran, read from the live objects; the configuration only says what was asked for."""

from __future__ import annotations

from typing import Any

import torch


def facts(run: Any) -> dict[str, Any]:
    """The record's `observed`: launcher, device, classes and number formats as rank 0 sees them."""
    model = run.accelerator.unwrap_model(run.prepared.model)
    optimizer = run.prepared.base_optimizer
    first = next(model.parameters())
    return {
        "distributed_type": str(run.accelerator.distributed_type.value),
        "device": str(run.accelerator.device.type),
        "world_size": run.accelerator.num_processes,
        "zero_stage": run.config.zero.stage if run.config.launcher.name == "deepspeed" else None,
        "optimizer_class": f"{type(optimizer).__module__.split('.')[0]}.{type(optimizer).__name__}",
        "optimizer_fused": bool(optimizer.param_groups[0].get("fused")),
        "optimizer_state_dtype": _state_dtype(optimizer),
        "scheduler_class": type(run.prepared.scheduler or getattr(run.prepared.model, "lr_scheduler", None)).__name__,
        "parameter_dtype": _name(first.dtype),
        "gradient_dtype": _name(first.dtype),
        "activation_dtype": run.activation_dtype,
    }


def _state_dtype(optimizer: torch.optim.Optimizer) -> str | None:
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.ndim:
                return _name(value.dtype)
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def watch_activations(run: Any) -> None:
    """Note the number format of the first linear layer's output in the first forward pass, then stop watching."""
    model = run.accelerator.unwrap_model(run.prepared.model)
    layer = next(
        module for module in model.modules() if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
    )

    def note(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
        run.activation_dtype = _name(output.dtype)
        handle.remove()

    handle = layer.register_forward_hook(note)
