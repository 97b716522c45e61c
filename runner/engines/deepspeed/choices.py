"""Which of DeepSpeed's choices hold together, and when its keys matter."""

from __future__ import annotations

from collections.abc import Callable

from runner.adapters import adapter_of
from runner.config.schema import RunConfig
from runner.config.sequence_limits import architecture_facts
from runner.engines.base import Rule
from runner.engines.deepspeed.config import offload_section, on_nvme, zero_section
from runner.errors import Problem
from runner.optimizers import optimizer_of
from runner.parallel.tensor import why_not
from runner.schedules import schedule_of

NAME = "deepspeed"
FUSED_UNDER_CPU_ADAM = (
    "this has no effect: DeepSpeed's CPU Adam takes the offloaded optimizer's place",
    "leave it out, or add offload.force_cpu_adam=false",
)


def choice_problems(config: RunConfig) -> list[Problem]:
    """Choices that exclude each other in a run under DeepSpeed."""
    return [*_offload(config), *_unscaled(config), *_hybrid_shard(config), *_tensor(config)]


def _offload(config: RunConfig) -> list[Problem]:
    offload, stage = offload_section(config), zero_section(config).stage
    if offload.params != "none" and stage != 3:
        why = f"parameters can be offloaded at ZeRO 3 only, this is ZeRO {stage} (DeepSpeed would ignore it silently)"
        return [Problem("offload", offload.name, why, "use zero_stage=3, or offload=optimizer_cpu")]
    if offload.optimizer != "none" and stage == 0:
        why = "there is nothing to offload at ZeRO 0 (DeepSpeed would ignore it silently)"
        return [Problem("offload", offload.name, why, "use zero_stage=2")]
    if offload.optimizer == "nvme" and stage != 3:
        why = (
            f"optimizer states go to NVMe at ZeRO 3 only, this is ZeRO {stage} "
            "(DeepSpeed would keep them in memory silently)"
        )
        return [Problem("offload", offload.name, why, "use zero_stage=3, or offload=optimizer_cpu")]
    return []


def _hybrid_shard(config: RunConfig) -> list[Problem]:
    """hpZ beside what it was not proved with."""
    group, zero, offload = config.parallel.hybrid_shard, zero_section(config), offload_section(config)
    if group is None:
        return []
    key = "parallel.hybrid_shard"
    if zero.stage != 3:
        why = f"only ZeRO 3 keeps a second copy of the weights in a group, this is ZeRO {zero.stage} (DeepSpeed would "
        why += "ignore it silently)"
        return [Problem(key, group, why, "use zero_stage=3 or launcher=fsdp")]
    if offload.params != "none":
        why = "the second copy of the weights would go to the host as well: not proved here"
        return [Problem(key, group, why, "use offload=optimizer_cpu, or leave it out")]
    if zero.partition_at_load:
        why = "with zero.partition_at_load it is not proved here"
        return [Problem(key, group, why, "leave one of them out")]
    return []


def _tensor(config: RunConfig) -> list[Problem]:
    """A model that cannot be split, and what tensor parallelism was not proved with."""
    degree, key = config.parallel.tensor, "parallel.tensor"
    if degree == 1:
        return []
    why = why_not(architecture_facts(config.model), degree)
    if why is not None:
        return [Problem(key, degree, why, "leave it out, or choose a model such as model=llama_tiny")]
    beside = {
        "parallel.hybrid_shard": config.parallel.hybrid_shard is not None,
        "zero.partition_at_load": zero_section(config).partition_at_load,
        "offload": offload_section(config).name != "none",
        "precision=fp16": config.precision.name == "fp16",
        f"adapter={adapter_of(config).name}": bool(adapter_of(config).label),  # AutoTP does not know peft's layers
    }
    found = [name for name, chosen in beside.items() if chosen]
    why = f"together with {' and '.join(found)} it is not proved here"
    return [Problem(key, degree, why, "leave one of them out")] if found else []


def missing_folder(config: RunConfig) -> list[Problem]:
    """NVMe offload without a folder."""
    if not on_nvme(config) or offload_section(config).nvme_path:
        return []
    fix = "add nvme_path to launcher.config_file" if config.launcher.config_file else "add offload.nvme_path=DIR"
    return [Problem("offload.nvme_path", None, "NVMe offload needs a folder on a fast local disk", fix)]


def _unscaled(config: RunConfig) -> list[Problem]:
    """DeepSpeed's backward scales the loss for ZeRO's optimizers only; its fp16 optimizer of stage
    0 always unscales.
    """
    if config.precision.name != "fp16" or zero_section(config).stage:
        return []
    why = (
        "DeepSpeed 0.19 trains wrongly in fp16 at ZeRO 0: gradients are divided by a loss scale that the loss was "
        "never multiplied with"
    )
    return [Problem("zero_stage", 0, why, "use zero_stage=1, launcher=ddp, or precision=bf16 (fp32 on older GPUs)")]


def unused_choices(config: RunConfig) -> list[Problem]:
    """Stage and offload in a run of another engine."""
    offload, stage, other = offload_section(config), zero_section(config).stage, config.launcher.name
    problems = []
    if stage:
        why = f"launcher={other} does not partition anything by ZeRO stages"
        fix = f"use launcher={NAME} zero_stage={stage}, or leave zero_stage out"
        problems.append(Problem("zero_stage", stage, why, fix))
    if offload.name != "none":
        why = f"launcher={other} does not offload anything this way"
        fix = f"use launcher={NAME} zero_stage=3 offload={offload.name}, or leave offload out"
        problems.append(Problem("offload", offload.name, why, fix))
    return problems


def owner_problems(config: RunConfig, total_steps_known: bool) -> list[Problem]:
    """Replace `owner=auto` in place; refuse what DeepSpeed cannot do as an owner."""
    optimizer, scheduler = config.optimizer, config.scheduler
    found, can_own = [], optimizer_of(optimizer).deepspeed_owns
    if optimizer.owner == "auto":
        optimizer.owner = "deepspeed" if can_own else "client"
    elif optimizer.owner == "deepspeed" and not can_own:
        found.append(
            _cannot_own(config, "optimizer", f"DeepSpeed's JSON has no {optimizer.name} of the same arithmetic")
        )
    reason = _why_not_schedule(config, total_steps_known)
    if scheduler.owner == "auto":
        scheduler.owner = "client" if reason else "deepspeed"
    elif scheduler.owner == "deepspeed" and reason:
        found.append(_cannot_own(config, "scheduler", reason))
    return found


def _cannot_own(config: RunConfig, block: str, why: str) -> Problem:
    own_file = f"remove the {block} block from launcher.config_file: the client owns it then"
    return Problem(
        f"{block}.owner", "deepspeed", why, own_file if config.launcher.config_file else f"use {block}.owner=client"
    )


def _why_not_schedule(config: RunConfig, total_steps_known: bool) -> str | None:
    """Why DeepSpeed cannot own the schedule, if so."""
    schedule = schedule_of(config.scheduler)
    if schedule.deepspeed_type is None:
        return f"DeepSpeed has no schedule with the curve of scheduler={schedule.name}"
    if config.scheduler.warmup_ratio is not None:
        return "how many steps scheduler.warmup_ratio means is known when the data are read"
    if config.scheduler.warmup_steps == 1:
        return "DeepSpeed raises a warm-up of 1 step to 2 (0, or 2 and more, are exact)"
    if schedule.needs_total and not total_steps_known:
        return "the number of optimizer steps is not known before the data is read (train.max_steps would give it)"
    return None


def _chosen(config: RunConfig) -> bool:
    return config.launcher.name == NAME


def _stage(*stages: int) -> Callable[[RunConfig], bool]:
    return lambda config: _chosen(config) and zero_section(config).stage in stages


_STAGE3 = (
    "zero.sub_group_size",
    "zero.stage3_prefetch_bucket_size",
    "zero.stage3_param_persistence_threshold",
    "zero.stage3_max_live_parameters",
    "zero.stage3_max_reuse_distance",
    "zero.partition_at_load",
)
_ANY_STAGE = ("zero.reduce_bucket_size", "zero.overlap_comm", "zero.contiguous_gradients")
_STAGE2_FIX = f"add launcher={NAME} zero_stage=2 or leave it out"
RULES = (
    Rule(_ANY_STAGE, _stage(1, 2, 3), "only ZeRO 1, 2 and 3 read it", _STAGE2_FIX),
    Rule(("zero.allgather_bucket_size",), _stage(1, 2), "only ZeRO 1 and 2 read it", _STAGE2_FIX),
    Rule(_STAGE3, _stage(3), "only ZeRO 3 reads it", f"add launcher={NAME} zero_stage=3 or leave it out"),
    Rule(
        ("precision.loss_scale", "precision.hysteresis", "precision.min_loss_scale"),
        lambda config: config.precision.name != "fp16" or _chosen(config),
        "torch's loss scaler, which the other launchers use, has no such number",
        f"add launcher={NAME} or leave it out",
    ),
    Rule(
        ("offload.nvme_path", "offload.buffer_count"),
        on_nvme,
        "only NVMe offload reads it",
        "add zero_stage=3 offload=nvme or leave it out",
    ),
    Rule(
        ("offload.pin_memory",),
        lambda config: offload_section(config).name != "none" and config.launcher.device == "cuda",
        "only offload from a GPU pins memory",
        "add offload=cpu or leave it out",
    ),
    Rule(
        ("offload.force_cpu_adam",),
        lambda config: offload_section(config).optimizer != "none",
        "only an offloaded optimizer reads it",
        "add offload=optimizer_cpu or leave it out",
    ),
    Rule(
        ("launcher.config_file",),
        _chosen,
        f"a DeepSpeed JSON is read by launcher={NAME} only",
        f"add launcher={NAME} or leave it out",
    ),
)
