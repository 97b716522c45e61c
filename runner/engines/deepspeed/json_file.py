"""Configuration → the complete DeepSpeed JSON. Every value is a number or a word that holds; no `auto` is left."""

from __future__ import annotations

import json
from typing import Any

from runner.config import plan
from runner.config.schema import RunConfig
from runner.engines.deepspeed.config import offload_section, on_cpu_adam, on_nvme, zero_section
from runner.memory.model_size import largest_tensor
from runner.schedules import schedule_of

FILE = "ds_config.json"
NVME_BUFFER_ELEMENTS = 100_000_000  # DeepSpeed's own default
NEVER = 2**31 - 1  # steps_per_print: DeepSpeed's own log lines are off


def deepspeed_config(config: RunConfig, total_steps: int | None) -> dict[str, Any]:
    """The complete DeepSpeed JSON of a resolved configuration.

    Args:
        total_steps: optimizer steps of the run; needed where DeepSpeed owns a schedule that ends.
    """
    rendered: dict[str, Any] = {
        **_whole_batch(config),
        "train_micro_batch_size_per_gpu": config.train.micro_batch_size,
        "gradient_accumulation_steps": config.train.gradient_accumulation_steps,
        "gradient_clipping": config.train.gradient_clipping,
        "bf16": {"enabled": config.precision.name == "bf16"},
        "fp16": _fp16(config),
        "zero_optimization": _zero(config),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": offload_section(config).force_cpu_adam,
        "steps_per_print": NEVER,
        "wall_clock_breakdown": False,
    }
    if config.parallel.tensor > 1:
        # Without the second key a tied head would be cut by words, and the logits that evaluation reads with it.
        rendered["tensor_parallel"] = {"autotp_size": config.parallel.tensor, "vocab_parallel_lm_head": False}
    if on_nvme(config):
        rendered["aio"] = {"block_size": 1048576, "queue_depth": 8, "single_submit": False, "overlap_events": True}
    if config.optimizer.owner == "deepspeed":
        rendered["optimizer"] = _optimizer(config)
    if config.scheduler.owner == "deepspeed":
        rendered["scheduler"] = _scheduler(config, total_steps)
    return rendered


def _whole_batch(config: RunConfig) -> dict[str, Any]:
    """The global batch; left out under tensor parallelism, where DeepSpeed compares it with a product over all ranks,
    while a batch goes to each group of ranks.
    """
    return {} if config.parallel.tensor > 1 else {"train_batch_size": plan.global_batch_size(config)}


def set_batch(content: dict[str, Any], config: RunConfig) -> None:
    """The batch in a DeepSpeed JSON, in place."""
    content["train_micro_batch_size_per_gpu"] = config.train.micro_batch_size
    content["gradient_accumulation_steps"] = config.train.gradient_accumulation_steps
    content.pop("train_batch_size", None)
    content.update(_whole_batch(config))


def _fp16(config: RunConfig) -> dict[str, Any]:
    precision = config.precision
    if precision.name != "fp16":
        return {"enabled": False}
    keys = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
    given = {key: getattr(precision, key) for key in keys if getattr(precision, key) is not None}
    return {"enabled": True, "auto_cast": False, **given}


def _zero(config: RunConfig) -> dict[str, Any]:
    zero, stage = zero_section(config), zero_section(config).stage
    rendered: dict[str, Any] = {"stage": stage}
    if stage == 0:
        return rendered
    rendered |= {
        "reduce_bucket_size": zero.reduce_bucket_size,
        "overlap_comm": zero.overlap_comm,
        "contiguous_gradients": zero.contiguous_gradients,
    }
    if stage < 3:
        rendered["allgather_bucket_size"] = zero.allgather_bucket_size
    else:
        keys = (
            "sub_group_size",
            "stage3_prefetch_bucket_size",
            "stage3_param_persistence_threshold",
            "stage3_max_live_parameters",
            "stage3_max_reuse_distance",
        )
        rendered |= {key: getattr(zero, key) for key in keys}
        # Without it the final weights could not be saved, and DeepSpeed says so only then.
        rendered["stage3_gather_16bit_weights_on_model_save"] = True
        set_hybrid_shard(rendered, config)
    return rendered | _offload(config)


def set_hybrid_shard(zero: dict[str, Any], config: RunConfig) -> None:
    """hpZ's group in a `zero_optimization` block, in place."""
    zero.pop("zero_hpz_partition_size", None)
    if config.parallel.hybrid_shard is not None:
        zero["zero_hpz_partition_size"] = config.parallel.hybrid_shard


def _offload(config: RunConfig) -> dict[str, Any]:
    offload = offload_section(config)
    rendered: dict[str, Any] = {}
    pin = offload.pin_memory and config.launcher.device == "cuda"
    for key, target in (("offload_optimizer", offload.optimizer), ("offload_param", offload.params)):
        if target != "none":
            rendered[key] = {"device": target, "pin_memory": pin}
            if target == "nvme":
                rendered[key] |= {"nvme_path": offload.nvme_path, "buffer_count": offload.buffer_count}
    if offload.params == "nvme":
        rendered["offload_param"]["buffer_size"] = nvme_buffer_elements(config)
    return rendered


def nvme_buffer_elements(config: RunConfig) -> int:
    """Elements of one buffer of the pool that parameters are read into: DeepSpeed asserts that the largest fits."""
    return max(NVME_BUFFER_ELEMENTS, largest_tensor(config.model))


def _optimizer(config: RunConfig) -> dict[str, Any]:
    optimizer = config.optimizer
    params: dict[str, Any] = {
        "lr": optimizer.lr,
        "betas": list(optimizer.betas),
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        # torch's AdamW, as under DDP: nothing to compile, and the same arithmetic.
        "torch_adam": not on_cpu_adam(config),
        "adam_w_mode": True,
    }
    if optimizer.fused is True:
        params["fused"] = True  # DeepSpeed hands on to torch's class what it does not know itself
    return {"type": "AdamW", "params": params}


def _scheduler(config: RunConfig, total_steps: int | None) -> dict[str, Any]:
    """DeepSpeed's block with the same learning rate at every step as `plan.learning_rate_factor`.

    DeepSpeed raises a warm-up below 2 steps to 2. Without warm-up the schedule therefore starts at index 2,
    behind a warm-up of 2 that is never used: (total + 2 − (k + 2)) / total = (total − k) / total.
    """
    warmup, shift = config.scheduler.warmup_steps, 0
    params: dict[str, Any] = {"warmup_min_lr": 0, "warmup_max_lr": config.optimizer.lr, "warmup_type": "linear"}
    if warmup == 0:
        warmup, shift = 2, 2
        params["last_batch_iteration"] = 2
    params["warmup_num_steps"] = warmup
    schedule = schedule_of(config.scheduler)
    if schedule.needs_total:
        assert total_steps is not None, "a schedule that ends needs the number of steps"
        params["total_num_steps"] = total_steps + shift
    return {"type": schedule.deepspeed_type, "params": params}


def as_text(content: dict[str, Any]) -> str:
    """The file as it is written."""
    return json.dumps(content, indent=2) + "\n"
