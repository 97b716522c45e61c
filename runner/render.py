"""Configuration → accelerate YAML, DeepSpeed JSON and the command that runs the same thing by hand.

What is written here is what runs: the runner's own ranks read these files and nothing else. Every value is
a number or a word that holds; no `auto` is left.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from runner import paths, rundir
from runner.config import plan
from runner.config.schema import RunConfig
from runner.engines.deepspeed import ops
from runner.engines.deepspeed.swap_folder import into_own_folder
from runner.rundir.record import write_atomically

NEVER = 2**31 - 1  # steps_per_print: DeepSpeed's own log lines are off
# How often a thread of GNU OpenMP looks for its next work before it sleeps. Left alone it looks for milliseconds,
# which halts every process on the machine once there are more threads than cores. 1,000 looks last about as long as
# falling asleep and waking does, so that a wait costs at most twice what it must (benchmarks/threads.md).
SPIN_COUNT = "1000"
_WAIT_VARIABLES = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}  # where the user has set one of them, it holds


@dataclass(frozen=True)
class Rendered:
    """The files of a run, by name, as text."""

    files: dict[str, str]
    command: str


def deepspeed_config(config: RunConfig, total_steps: int | None) -> dict[str, Any]:
    """The complete DeepSpeed JSON of a resolved configuration.

    Args:
        total_steps: optimizer steps of the run; needed where DeepSpeed owns a schedule that ends.
    """
    rendered: dict[str, Any] = {
        "train_batch_size": plan.global_batch_size(config),
        "train_micro_batch_size_per_gpu": config.train.micro_batch_size,
        "gradient_accumulation_steps": config.train.gradient_accumulation_steps,
        "gradient_clipping": config.train.gradient_clipping,
        "bf16": {"enabled": config.precision.name == "bf16"},
        "fp16": _fp16(config),
        "zero_optimization": _zero(config),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": config.offload.force_cpu_adam,
        "steps_per_print": NEVER,
        "wall_clock_breakdown": False,
    }
    if config.offload.optimizer == "nvme" or config.offload.params == "nvme":
        rendered["aio"] = {"block_size": 1048576, "queue_depth": 8, "single_submit": False, "overlap_events": True}
    if config.optimizer.owner == "deepspeed":
        rendered["optimizer"] = _optimizer(config)
    if config.scheduler.owner == "deepspeed":
        rendered["scheduler"] = _scheduler(config, total_steps)
    return rendered


def _fp16(config: RunConfig) -> dict[str, Any]:
    precision = config.precision
    if precision.name != "fp16":
        return {"enabled": False}
    keys = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
    given = {key: getattr(precision, key) for key in keys if getattr(precision, key) is not None}
    return {"enabled": True, "auto_cast": False, **given}


def _zero(config: RunConfig) -> dict[str, Any]:
    zero, stage = config.zero, config.zero.stage
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
    return rendered | _offload(config)


def _offload(config: RunConfig) -> dict[str, Any]:
    offload = config.offload
    rendered: dict[str, Any] = {}
    pin = offload.pin_memory and config.launcher.device == "cuda"
    for key, target in (("offload_optimizer", offload.optimizer), ("offload_param", offload.params)):
        if target != "none":
            rendered[key] = {"device": target, "pin_memory": pin}
            if target == "nvme":
                rendered[key] |= {"nvme_path": offload.nvme_path, "buffer_count": offload.buffer_count}
    return rendered


def _optimizer(config: RunConfig) -> dict[str, Any]:
    optimizer = config.optimizer
    params: dict[str, Any] = {
        "lr": optimizer.lr,
        "betas": list(optimizer.betas),
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        # torch's AdamW, as under DDP: nothing to compile, and the same arithmetic.
        "torch_adam": not plan.on_cpu_adam(config),
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
    if config.scheduler.name == "constant":
        return {"type": "WarmupLR", "params": params}
    assert total_steps is not None, "a schedule that ends needs the number of steps"
    params["total_num_steps"] = total_steps + shift
    return {"type": "WarmupDecayLR", "params": params}


def accelerate_config(config: RunConfig, run_dir: Path) -> dict[str, Any]:
    """The complete accelerate YAML."""
    ranks = plan.world_size(config)
    rendered: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "machine_rank": 0,
        "main_process_port": config.launcher.main_process_port or 0,  # 0: a free one
        "main_training_function": "main",
        "num_machines": 1,
        "num_processes": ranks,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,  # on CPU, too: with true accelerate starts one process, whatever num_processes says
    }
    if config.launcher.device == "cuda":
        rendered["gpu_ids"] = config.launcher.gpu_ids
    if config.launcher.name == "deepspeed":
        # accelerate refuses mixed_precision and the like next to a DeepSpeed file: they are in the file.
        rendered["distributed_type"] = "DEEPSPEED"
        rendered["deepspeed_config"] = {
            "deepspeed_config_file": str(run_dir / rundir.DEEPSPEED_FILE),
            "zero3_init_flag": config.zero.stage == 3 and config.zero.partition_at_load,
        }
    else:
        rendered["distributed_type"] = "MULTI_GPU" if ranks > 1 else "NO"
        rendered["mixed_precision"] = {"fp32": "no"}.get(config.precision.name, config.precision.name)
    return rendered


def rank_environment(config: RunConfig) -> dict[str, str]:
    """Environment variables that ranks need besides the rendered files."""
    cache = paths.cache_dir(config.cache_dir)
    variables = {
        "OMP_NUM_THREADS": str(config.launcher.omp_num_threads),
        "TOKENIZERS_PARALLELISM": "false",  # ranks fork; the tokenizer's threads would not survive it
        "TORCH_EXTENSIONS_DIR": str(ops.extensions_dir(config.cache_dir, config.launcher.device)),
    }
    if not _WAIT_VARIABLES & set(os.environ):
        variables["GOMP_SPINCOUNT"] = SPIN_COUNT
    if config.launcher.device == "cpu":
        variables |= (
            {"DS_ACCELERATOR": "cpu"} if config.launcher.name == "deepspeed" else {"ACCELERATE_USE_CPU": "true"}
        )
        variables["CUDA_VISIBLE_DEVICES"] = ""  # accelerate under DeepSpeed takes a GPU wherever torch sees one
    if config.cache_dir:
        variables |= paths.cache_variables(cache)
    return variables


def by_hand_command(config: RunConfig, run_dir: Path) -> str:
    """The one line that runs the same thing with `accelerate launch`."""
    own = Path(sys.executable).with_name("accelerate")
    program = "accelerate" if shutil.which("accelerate") == str(own) or not own.exists() else str(own)
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in rank_environment(config).items())
    launch = f"{shlex.quote(program)} launch --config_file {shlex.quote(str(run_dir / rundir.ACCELERATE_FILE))}"
    return f"{variables} {launch} -m runner.train.worker {shlex.quote(str(run_dir))}"


def render(
    config: RunConfig, run_dir: Path, total_steps: int | None, user_json: dict[str, Any] | None = None
) -> Rendered:
    """All files of a run as text; `user_json` is a user's DeepSpeed JSON, completed from the configuration."""
    command = by_hand_command(config, run_dir)
    files = {
        rundir.CONFIG_FILE: yaml.safe_dump(
            config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=10_000
        ),
        rundir.ACCELERATE_FILE: yaml.safe_dump(accelerate_config(config, run_dir), allow_unicode=True),
        rundir.COMMAND_FILE: command + "\n",
    }
    if config.launcher.name == "deepspeed":
        content = into_own_folder(user_json or deepspeed_config(config, total_steps), run_dir)
        files[rundir.DEEPSPEED_FILE] = json.dumps(content, indent=2) + "\n"
    return Rendered(files, command)


def write(rendered: Rendered, run_dir: Path) -> None:
    """Write the files into the run folder, which is made where it is missing."""
    os.makedirs(run_dir, exist_ok=True)
    for name, text in rendered.files.items():
        write_atomically(run_dir / name, text)
