"""DDP in a training script that runs without the runner."""

from __future__ import annotations

from runner.config.schema import RunConfig
from runner.engines.standalone import Standalone


def standalone(config: RunConfig) -> Standalone:
    """Plain accelerate: torch's AdamW and a LambdaLR."""
    optimizer = config.optimizer
    fp16 = config.precision.name == "fp16"
    fused = ", fused=True" if optimizer.fused is True else ""
    clip = [f"accelerator.clip_grad_norm_(model.parameters(), {config.train.gradient_clipping!r})"]
    scaler = {"init_scale": None, "growth_interval": config.precision.loss_scale_window}
    if config.precision.initial_scale_power is not None:
        scaler["init_scale"] = 2**config.precision.initial_scale_power
    chosen = ", ".join(f"{name}={value}" for name, value in scaler.items() if value is not None)
    scale = fp16 and bool(chosen)
    return Standalone(
        prepare=[
            f"optimizer = torch.optim.AdamW(groups, lr=LR, betas={tuple(optimizer.betas)}, eps={optimizer.eps}{fused})",
            "model, optimizer = accelerator.prepare(model, optimizer)",
            "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer.optimizer, lr_factor)",
        ],
        after_backward=[
            *(clip if config.train.gradient_clipping else []),
            "optimizer.step()",
            "optimizer.zero_grad()",
            *(
                ["if not accelerator.optimizer_step_was_skipped:  # fp16 overflowed", "    scheduler.step()"]
                if fp16
                else ["scheduler.step()"]
            ),
        ],
        environment={"ACCELERATE_USE_CPU": "true"} if config.launcher.device == "cpu" else {},
        accelerate_utils=["GradScalerKwargs"] if scale else [],
        accelerator=[
            *(["cpu=True"] if config.launcher.device == "cpu" else []),
            *([f"kwargs_handlers=[GradScalerKwargs({chosen})]"] if scale else []),
        ],
    )
