"""DeepSpeed in a training script that runs without the runner."""

from __future__ import annotations

from runner.config.schema import RunConfig
from runner.engines.deepspeed.config import zero_section
from runner.engines.standalone import Standalone

_NO_SHARED_MEMORY_OP = (
    "# DeepSpeed would compile a shared-memory all-reduce at the first start on a CPU; gloo does the same.",
    'vars(deepspeed.ops).setdefault("__compatible_ops__", {})["deepspeed_shm_comm"] = False',
)


def standalone(config: RunConfig) -> Standalone:
    """The engine under plain accelerate, which steps it inside `accelerator.backward`."""
    on_cpu = config.launcher.device == "cpu"
    names, prepare = _prepare(config)
    client = config.scheduler.owner == "client" and config.optimizer.owner == "client"
    handlers = ["kwargs_handlers=[InitProcessGroupKwargs(backend='gloo')]".replace("'", '"')] if on_cpu else []
    overflow = ['if not getattr(model.optimizer, "overflow", False):  # fp16 overflowed', "    scheduler.step()"]
    step = overflow if config.precision.name == "fp16" else ["scheduler.step()"]
    return Standalone(
        prepare=prepare,
        after_backward=step if client else [],
        imports=["import deepspeed"] if on_cpu else [],
        accelerate_utils=[*names, *(["InitProcessGroupKwargs"] if on_cpu else [])],
        environment={"DS_ACCELERATOR": "cpu"} if on_cpu else {},
        before_start=list(_NO_SHARED_MEMORY_OP) if on_cpu else [],
        accelerator=handlers,
        collective_forward=zero_section(config).stage == 3 and config.launcher.num_processes != 1,
    )


def _prepare(config: RunConfig) -> tuple[list[str], list[str]]:
    """Names from accelerate.utils, and the statements, for the four mixes of owners."""
    owned = config.optimizer.owner == "deepspeed", config.scheduler.owner == "deepspeed"
    betas, eps = tuple(config.optimizer.betas), config.optimizer.eps
    settings = f"groups, lr=LR, betas={betas}, eps={eps}"
    weight_decay = f", weight_decay={config.optimizer.weight_decay}"
    lines = [
        f"optimizer = DummyOptim({settings}{weight_decay})"
        if owned[0]
        else f"optimizer = torch.optim.AdamW({settings})"
    ]
    names = ["DummyOptim"] if owned[0] else []
    if owned == (False, False):
        return names, [
            *lines,
            "model, optimizer = accelerator.prepare(model, optimizer)",
            "# On the optimizer that DeepSpeed really steps.",
            "scheduler = torch.optim.lr_scheduler.LambdaLR(model.basic_optimizer, lr_factor)",
        ]
    names.append("DummyScheduler")
    if owned[1]:
        lines += [
            "scheduler = DummyScheduler(optimizer)",
            "model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)",
            "model.lr_scheduler.step(0)  # DeepSpeed's schedules start one index early",
        ]
    else:
        lines += [
            "scheduler = DummyScheduler(",
            "    optimizer, lr_scheduler_callable=lambda built: torch.optim.lr_scheduler.LambdaLR(built, lr_factor)",
            ")",
            "model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)",
        ]
    return names, lines
