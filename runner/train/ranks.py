"""One Accelerator per rank, and proof that the ranks really work together.

Measured (docs/architecture.md): with a setting missing, accelerate on CPU believes in one process in
every rank and each trains a model of its own, exit status 0. So what was asked for is compared with what
accelerate, torch and DeepSpeed report, and with a checksum of the parameters over all ranks.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, GradientAccumulationPlugin, GradScalerKwargs, InitProcessGroupKwargs

from runner import rundir
from runner.config import plan
from runner.config.schema import RunConfig
from runner.engines.deepspeed.muon import import_muon
from runner.engines.deepspeed.ops import use_built

CHECKSUM_ELEMENTS = 2**22  # summed in float64 at a time: a whole embedding would need gigabytes


class RankError(RuntimeError):
    """The ranks are not what was asked for."""


def build_accelerator(config: RunConfig) -> Accelerator:
    """The Accelerator of this rank, checked against the configuration.

    Raises:
        RankError: when world size, launcher or device differ from what was asked for.
    """
    options: dict[str, Any] = {}
    group: dict[str, Any] = {"timeout": _group_timeout(config)} if rundir.started_by_runner() else {}
    if config.launcher.name == "deepspeed":
        import_muon()  # for ranks that no host has preloaded
    if config.launcher.device == "cpu":
        if config.launcher.name == "deepspeed":
            # Without the backend accelerate sees one process; with cpu=True it drops DeepSpeed.
            group["backend"] = "gloo"
            _leave_out_shared_memory_op()
        else:
            options["cpu"] = True
    if config.launcher.name == "deepspeed":
        use_built(config)
    accelerator = Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=config.train.gradient_accumulation_steps),
        step_scheduler_with_optimizer=False,  # accelerate would step it once per process for every optimizer step
        kwargs_handlers=[InitProcessGroupKwargs(**group), *_scaler(config)] if group else _scaler(config),
        **options,
    )
    _check(config, accelerator)
    return accelerator


def _group_timeout(config: RunConfig) -> timedelta:
    """Longer than the runner waits: it ends a run that stands still and has the ranks' stacks written, while a process
    group that gives up first (NCCL's after 10 minutes) leaves none, and would end a run in which rank 0 writes for
    long.
    """
    launcher = config.launcher
    return timedelta(seconds=2 * max(launcher.hang_timeout_seconds, launcher.start_timeout_seconds) + 600)


def _scaler(config: RunConfig) -> list[Any]:
    """DDP in fp16: torch's loss scaler with the configured numbers."""
    precision = config.precision
    given = {
        "init_scale": 2.0**precision.initial_scale_power if precision.initial_scale_power is not None else None,
        "growth_interval": precision.loss_scale_window,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return [GradScalerKwargs(**chosen)] if chosen and config.launcher.name == "ddp" else []


class _OpsAskedLater(dict[str, bool]):
    """DeepSpeed's table of the ops that can be built here, filled when one is asked for."""

    def __missing__(self, name: str) -> bool:
        import deepspeed.ops

        self.update({**deepspeed.ops._probe_compatible_ops(), **self})
        return self[name]


def _leave_out_shared_memory_op() -> None:
    """Keep DeepSpeed from compiling its shared-memory all-reduce (25 s, needs g++): gloo does the same for DDP and
    ZeRO.

    Its table of ops calls the C compiler when it is first looked at; that one answer needs no compiler.
    """
    import deepspeed.ops

    vars(deepspeed.ops).setdefault("__compatible_ops__", _OpsAskedLater())["deepspeed_shm_comm"] = False


def _check(config: RunConfig, accelerator: Accelerator) -> None:
    wanted = plan.world_size(config)
    torch_world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if not accelerator.num_processes == torch_world == wanted:
        raise RankError(
            f"asked for {wanted} ranks, accelerate sees {accelerator.num_processes}, torch sees {torch_world}"
        )
    if accelerator.device.type != config.launcher.device:
        raise RankError(f"asked for device {config.launcher.device}, accelerate uses {accelerator.device.type}")
    has_deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
    if has_deepspeed != (config.launcher.name == "deepspeed"):
        raise RankError(f"asked for launcher {config.launcher.name}, accelerate runs {accelerator.distributed_type}")


def sum_over_ranks(accelerator: Accelerator, values: list[float]) -> list[float]:
    """Element-wise sum over all ranks, in float64."""
    tensor = torch.tensor(values, dtype=torch.float64, device=accelerator.device)
    if accelerator.num_processes > 1:
        torch.distributed.all_reduce(tensor)
    return [float(value) for value in tensor.tolist()]


def gather_objects(accelerator: Accelerator, value: Any) -> list[Any]:
    """`value` of every rank, in rank order, on every rank."""
    if accelerator.num_processes == 1:
        return [value]
    gathered: list[Any] = [None] * accelerator.num_processes
    torch.distributed.all_gather_object(gathered, value)
    return gathered


def parameter_checksum(model: torch.nn.Module) -> list[float]:
    """Sum and sum of squares of all parameters, in float64; partitioned ones are gathered one by one."""
    total, squares = 0.0, 0.0
    for parameter in model.parameters():
        with _whole(parameter):
            for part in parameter.detach().flatten().split(CHECKSUM_ELEMENTS):
                values = part.double()
                total, squares = total + values.sum().item(), squares + values.square().sum().item()
    return [total, squares]


def _whole(parameter: torch.nn.Parameter) -> Any:
    """A context in which a ZeRO-3 parameter has all its elements."""
    import contextlib

    if not hasattr(parameter, "ds_id"):
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter])


def check_equal_parameters(accelerator: Accelerator, model: torch.nn.Module, when: str) -> list[list[float]]:
    """Compare the parameters of all ranks; returns each rank's checksum.

    Raises:
        RankError: when two ranks differ: they trained separate models.
    """
    own = parameter_checksum(model)
    everyone = gather_objects(accelerator, own)
    if any(other != own for other in everyone):
        raise RankError(f"parameters differ between ranks {when}: checksums {everyone}")
    return everyone
