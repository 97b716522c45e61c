"""A key that has no effect is an error: what a user set must matter, or be refused with the choice that makes it
matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from runner import machine
from runner.config.schema import RunConfig
from runner.errors import Problem

Condition = Callable[[RunConfig], bool]


@dataclass(frozen=True)
class Rule:
    """Keys that only matter under a condition."""

    keys: tuple[str, ...]
    matters: Condition
    why: str
    fix: str


def _deepspeed(config: RunConfig) -> bool:
    return config.launcher.name == "deepspeed"


def _stage(*stages: int) -> Condition:
    return lambda config: _deepspeed(config) and config.zero.stage in stages


def _writes_checkpoints(config: RunConfig) -> bool:
    asked = config.checkpoint
    return config.mode == "train" and any(
        (asked.every_steps, asked.every_epoch, asked.every_minutes, asked.keep_best, asked.on_preemption)
    )


_STAGE3 = (
    "zero.sub_group_size",
    "zero.stage3_prefetch_bucket_size",
    "zero.stage3_param_persistence_threshold",
    "zero.stage3_max_live_parameters",
    "zero.stage3_max_reuse_distance",
    "zero.partition_at_load",
)
_FP16 = ("precision.initial_scale_power", "precision.loss_scale_window")
_FP16_DEEPSPEED = ("precision.loss_scale", "precision.hysteresis", "precision.min_loss_scale")
_NOT_TRAINED, _TRAIN = "nothing is trained under mode=evaluate", "leave it out or add mode=train"
# Recipes and models bring values of their own for these, so that only what was typed can be meant.
_TRAINING = (
    "train.epochs",
    "train.max_steps",
    "train.micro_batch_size",
    "train.gradient_accumulation_steps",
    "train.global_batch_size",
    "train.gradient_clipping",
    "train.gradient_checkpointing",
    "train.log_every",
    "train.batching",
    "train.dataloader_workers",
    "optimizer",
    "scheduler",
)

RULES = (
    Rule(
        ("zero.reduce_bucket_size", "zero.overlap_comm", "zero.contiguous_gradients"),
        _stage(1, 2, 3),
        "only ZeRO 1, 2 and 3 read it",
        "add launcher=deepspeed zero_stage=2 or leave it out",
    ),
    Rule(
        ("zero.allgather_bucket_size",),
        _stage(1, 2),
        "only ZeRO 1 and 2 read it",
        "add launcher=deepspeed zero_stage=2 or leave it out",
    ),
    Rule(_STAGE3, _stage(3), "only ZeRO 3 reads it", "add launcher=deepspeed zero_stage=3 or leave it out"),
    Rule(
        (*_FP16, *_FP16_DEEPSPEED),
        lambda c: c.precision.name == "fp16",
        "only fp16 scales the loss",
        "add precision=fp16 or leave it out",
    ),
    Rule(
        _FP16_DEEPSPEED,
        lambda c: c.precision.name != "fp16" or _deepspeed(c),
        "torch's loss scaler, which DDP uses, has no such number",
        "add launcher=deepspeed or leave it out",
    ),
    Rule(
        ("offload.nvme_path", "offload.buffer_count"),
        lambda c: "nvme" in (c.offload.optimizer, c.offload.params),
        "only NVMe offload reads it",
        "add zero_stage=3 offload=nvme or leave it out",
    ),
    Rule(
        ("offload.pin_memory",),
        lambda c: c.offload.name != "none" and c.launcher.device == "cuda",
        "only offload from a GPU pins memory",
        "add offload=cpu or leave it out",
    ),
    Rule(
        ("offload.force_cpu_adam",),
        lambda c: c.offload.optimizer != "none",
        "only an offloaded optimizer reads it",
        "add offload=optimizer_cpu or leave it out",
    ),
    Rule(
        ("launcher.config_file",),
        _deepspeed,
        "a DeepSpeed JSON is read by launcher=deepspeed only",
        "add launcher=deepspeed or leave it out",
    ),
    Rule(
        ("launcher.gpu_ids",),
        lambda c: c.launcher.device == "cuda" or bool(machine.installed_devices()),
        "there is no GPU in this run",
        "leave it out or add launcher.device=cuda",
    ),
    Rule(
        ("launcher.share_device",),
        lambda c: c.launcher.device == "cuda",
        "there is no GPU in this run",
        "leave it out or add launcher.device=cuda",
    ),
    Rule(
        ("model.revision",),
        lambda c: c.model.hub_id is not None and c.model.path is None,
        "a local folder has no revisions",
        "leave model.revision out",
    ),
    Rule(
        ("dataset.hub_id", "dataset.hub_config", "dataset.revision"),
        lambda c: c.dataset.source == "hub",
        "this data set is not read from the hub",
        "choose a hub data set (dataset=mrpc) or leave it out",
    ),
    Rule(
        (
            "train.warmup_steps_not_timed",
            "train.evaluate_every_epoch",
            "train.max_nonfinite_steps",
            "checkpoint.every_steps",
            "checkpoint.every_epoch",
            "checkpoint.every_minutes",
            "checkpoint.keep_best",
        ),
        lambda c: c.mode == "train",
        _NOT_TRAINED,
        _TRAIN,
    ),
    Rule(
        ("checkpoint.keep_last", "checkpoint.required"),
        _writes_checkpoints,
        "no checkpoints are written",
        "add checkpoint.every_steps=N or leave it out",
    ),
)


def _typed_for_training(typed: Iterable[str]) -> list[Problem]:
    return [
        Problem(name, None, f"this has no effect: {_NOT_TRAINED}", _TRAIN)
        for name in sorted(typed)
        if name in _TRAINING or name.startswith(("optimizer.", "scheduler."))
    ]


def unread_sections(names: Iterable[str], sections: tuple[str, ...], why: str) -> list[Problem]:
    """Typed keys of whole sections that this command does not read."""
    return [
        Problem(name, None, f"this has no effect: {why}", "leave it out")
        for name in sorted(names)
        if name.startswith(tuple(f"{section}." for section in sections))
    ]


def unused_keys(config: RunConfig, typed: Iterable[str]) -> list[Problem]:
    """Keys that nothing reads in this run: those whose value differs from the schema's default, or, for training's own,
    that were typed.
    """
    default = RunConfig()
    problems = _typed_for_training(typed) if config.mode == "evaluate" else []
    for rule in RULES:
        if rule.matters(config):
            continue
        for key in rule.keys:
            section, _, name = key.partition(".")
            value = getattr(getattr(config, section), name)
            if value != getattr(getattr(default, section), name):
                problems.append(Problem(key, value, f"this has no effect: {rule.why}", rule.fix))
    return problems
