"""A user's own DeepSpeed JSON: read, checked against the run, its `auto` values filled.

What the file states wins over the runner's defaults, and contradicts what was typed on the command line:
then both values are named. Whether it has an `optimizer` and a `scheduler` block decides who owns them.
"""

from __future__ import annotations

import copy
import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from runner import render
from runner.errors import Problem, RequestError
from runner.schema import RunConfig

AUTO = "auto"
ADOPTED = {  # where a value in the JSON belongs in the run's configuration
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_accumulation_steps": "train.gradient_accumulation_steps",
    "train_batch_size": "train.global_batch_size",
    "gradient_clipping": "train.gradient_clipping",
    "zero_optimization.stage": "zero.stage",
    "zero_optimization.offload_optimizer.device": "offload.optimizer",
    "zero_optimization.offload_param.device": "offload.params",
    "zero_optimization.offload_optimizer.nvme_path": "offload.nvme_path",
    "zero_optimization.offload_param.nvme_path": "offload.nvme_path",
    "optimizer.params.lr": "optimizer.lr",
    "optimizer.params.betas": "optimizer.betas",
    "optimizer.params.eps": "optimizer.eps",
    "optimizer.params.weight_decay": "optimizer.weight_decay",
    "scheduler.params.warmup_num_steps": "scheduler.warmup_steps",
    **{f"zero_optimization.{key}": f"zero.{key}" for key in ("reduce_bucket_size", "allgather_bucket_size", "overlap_comm", "contiguous_gradients", "sub_group_size")},
    **{f"zero_optimization.stage3_{key}": f"zero.stage3_{key}" for key in ("prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters", "max_reuse_distance")},
    **{f"fp16.{key}": f"precision.{key}" for key in ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")},
}
CHOSEN_BY = {"zero.stage": "zero_stage", "offload.optimizer": "offload", "offload.params": "offload"}  # group that sets the key
TOP_LEVEL = frozenset(
    [
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "steps_per_print",
        "dump_state",
        "optimizer",
        "scheduler",
        "fp16",
        "bf16",
        "amp",
        "zero_optimization",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "wall_clock_breakdown",
        "memory_breakdown",
        "prescale_gradients",
        "gradient_predivide_factor",
        "sparse_gradients",
        "communication_data_type",
        "seq_parallel_communication_data_type",
        "activation_checkpointing",
        "aio",
        "flops_profiler",
        "comms_logger",
        "tensorboard",
        "wandb",
        "csv_monitor",
        "comet",
        "monitor_config",
        "checkpoint",
        "data_types",
        "disable_allgather",
        "dataloader_drop_last",
        "use_data_before_expert_parallelism",
        "hybrid_engine",
        "compile",
        "elasticity",
        "autotuning",
        "data_efficiency",
        "curriculum_learning",
        "progressive_layer_drop",
        "eigenvalue",
        "sparse_attention",
        "pipeline",
        "tensor_parallel",
        "compression_training",
        "nebula",
        "graph_harvesting",
        "gradient_accumulation_dtype",
        "torch_autocast",
        "zenflow",
        "sequence_parallel_size",
        "timers",
    ]
)
ZERO = frozenset(
    [
        "stage",
        "contiguous_gradients",
        "reduce_scatter",
        "reduce_bucket_size",
        "use_multi_rank_bucket_allreduce",
        "allgather_partitions",
        "allgather_bucket_size",
        "overlap_comm",
        "load_from_fp32_weights",
        "elastic_checkpoint",
        "offload_param",
        "offload_optimizer",
        "sub_group_size",
        "cpu_offload_param",
        "cpu_offload_use_pin_memory",
        "cpu_offload",
        "prefetch_bucket_size",
        "param_persistence_threshold",
        "model_persistence_threshold",
        "max_live_parameters",
        "max_reuse_distance",
        "gather_16bit_weights_on_model_save",
        "module_granularity_threshold",
        "use_all_reduce_for_fetch_params",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
        "stage3_model_persistence_threshold",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_gather_16bit_weights_on_model_save",
        "stage3_module_granularity_threshold",
        "stage3_use_all_reduce_for_fetch_params",
        "stage3_allgather_sequential",
        "stage3_gather_fp16_weights_on_model_save",
        "ignore_unused_parameters",
        "legacy_stage1",
        "round_robin_gradients",
        "zero_hpz_partition_size",
        "zero_quantized_weights",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_gradients",
        "zeropp_loco_param",
        "mics_shard_size",
        "mics_hierarchical_params_gather",
        "memory_efficient_linear",
        "pipeline_loading_checkpoint",
        "override_module_apply",
        "log_trace_cache_warnings",
        "enable_sanity_checks",
        "save_muon_momentum_buffer_in_memory",
        "zenflow",
        "superoffload",
    ]
)


def adopt(config: RunConfig, explicit: frozenset[str]) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Read `launcher.config_file` and take its values into the configuration, in place.

    Args:
        explicit: keys and groups that were typed; a different value in the file is an error.

    Raises:
        RequestError: when the file cannot be read.
    """
    if config.launcher.config_file is None or config.launcher.name != "deepspeed":
        return None, []
    content = _read(Path(config.launcher.config_file).expanduser())
    stop_on_wrong_shapes(content)
    content, problems = _typed(content)
    problems += _unknown_keys(content)
    for path, key in ADOPTED.items():
        value = _get(content, path)
        if value is not None and value != AUTO:
            problems += _take(config, path, key, value, explicit)
    problems += _precision(config, content, explicit) + _owners(config, content, explicit) + _special_values(content)
    return content, problems


def fixed_batch(config: RunConfig, with_accumulation: bool) -> list[Problem]:
    """Batch sizes that `launcher.config_file` fixes, where they are what is searched for.

    Args:
        config: as composed.
        with_accumulation: whether gradient accumulation is set by the search, too.
    """
    if config.launcher.config_file is None or config.launcher.name != "deepspeed":
        return []
    content = _read(Path(config.launcher.config_file).expanduser())
    keys = ["train_batch_size", "train_micro_batch_size_per_gpu", *(["gradient_accumulation_steps"] if with_accumulation else [])]
    why = "the search for the largest micro batch sets it, and launcher.config_file fixes it"
    return [Problem(key, content[key], why, f'write "{key}": "auto" in launcher.config_file') for key in keys if content.get(key, AUTO) != AUTO]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(Problem("launcher.config_file", path, f"cannot be read ({error.strerror})", "set launcher.config_file=FILE")) from None
    except ValueError as error:
        raise RequestError(Problem("launcher.config_file", path, f"is no JSON ({error})", "mend the file")) from None
    if not isinstance(content, dict):
        raise RequestError(Problem("launcher.config_file", path, "is no JSON object", "mend the file"))
    return content


def stop_on_wrong_shapes(content: dict[str, Any]) -> None:
    """Blocks must be objects.

    Raises:
        RequestError: naming every one that is something else.
    """
    blocks = (
        "zero_optimization",
        "optimizer",
        "scheduler",
        "bf16",
        "fp16",
        "aio",
        "optimizer.params",
        "scheduler.params",
        "zero_optimization.offload_optimizer",
        "zero_optimization.offload_param",
    )
    wrong = [(name, value) for name in blocks if (value := _get(content, name)) is not None and not isinstance(value, dict)]
    if wrong:
        raise RequestError([Problem(name, value, "this is a block of keys in a DeepSpeed JSON, not a value", "mend launcher.config_file") for name, value in wrong])


def _typed(content: dict[str, Any], prefix: str = "") -> tuple[dict[str, Any], list[Problem]]:
    """Numbers and truth values written as text: numbers are converted with a notice, truth values refused."""
    typed: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in content.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            typed[name], found = _typed(value, f"{key}.")
            problems += found
            continue
        typed[name] = value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            problems.append(Problem(key, repr(value), "this is text, not a truth value (DeepSpeed takes any text for true)", f"write {value.lower()} without quotes in the JSON"))
        elif isinstance(value, str) and (number := _number(value)) is not None:
            typed[name] = number
            problems.append(Problem(key, repr(value), f"text was read as the number {number}", "", "notice"))
    return typed, problems


def _number(text: str) -> int | float | None:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return None


def _unknown_keys(content: dict[str, Any]) -> list[Problem]:
    problems = []
    for prefix, known, found in (("", TOP_LEVEL, content), ("zero_optimization.", ZERO, content.get("zero_optimization") or {})):
        for name in found:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                problems.append(Problem(f"{prefix}{name}", None, "DeepSpeed has no such key (in launcher.config_file)", f"did you mean {near[0]}?" if near else "remove it"))
    return problems


def _get(content: dict[str, Any], path: str) -> Any:
    node: Any = content
    for name in path.split("."):
        if not isinstance(node, dict) or name not in node:
            return None
        node = node[name]
    return node


def _take(config: RunConfig, path: str, key: str, value: Any, explicit: frozenset[str]) -> list[Problem]:
    section, _, name = key.partition(".")
    own = getattr(getattr(config, section), name)
    typed = key in explicit or CHOSEN_BY.get(key) in explicit or f"++{key}" in explicit
    if typed and not _same(own, value):
        return [Problem(CHOSEN_BY.get(key, key), own, f"launcher.config_file says {path}={value}", f"leave {CHOSEN_BY.get(key, key)} out or change the file")]
    try:
        setattr(getattr(config, section), name, tuple(value) if isinstance(value, list) else value)
    except ValueError as error:
        return [Problem(path, value, str(error).splitlines()[2].strip() if str(error).count("\n") > 1 else str(error), "mend launcher.config_file")]
    if key in ("offload.optimizer", "offload.params"):
        config.offload.name = "launcher.config_file"
    return []


def _same(own: Any, value: Any) -> bool:
    return list(own) == list(value) if isinstance(own, tuple) else own == value


def _precision(config: RunConfig, content: dict[str, Any], explicit: frozenset[str]) -> list[Problem]:
    enabled = [name for name in ("bf16", "fp16") if _get(content, f"{name}.enabled") is True]
    stated = [name for name in ("bf16", "fp16") if isinstance(_get(content, f"{name}.enabled"), bool)]
    if len(enabled) == 2:
        return [Problem("fp16.enabled", True, "bf16.enabled is true as well", "switch one of them off in launcher.config_file")]
    word = enabled[0] if enabled else "fp32" if stated else None
    if word is None:
        return []
    if "precision" in explicit and config.precision.name not in (word, AUTO):
        return [Problem("precision", config.precision.name, f"launcher.config_file means {word}", "leave precision out or change the file")]
    config.precision.name = word  # type: ignore[assignment]
    return []


def _owners(config: RunConfig, content: dict[str, Any], explicit: frozenset[str]) -> list[Problem]:
    problems = []
    for name in ("optimizer", "scheduler"):
        section, owner = getattr(config, name), "deepspeed" if name in content else "client"
        if f"{name}.owner" in explicit and section.owner not in (owner, AUTO):
            has = "has a" if name in content else "has no"
            problems.append(Problem(f"{name}.owner", section.owner, f"launcher.config_file {has} {name} block", f"use {name}.owner={owner} or change the file"))
        section.owner = owner
    return problems


def _special_values(content: dict[str, Any]) -> list[Problem]:
    """Values that DeepSpeed itself refuses only after the ranks have started."""
    problems = []
    if _get(content, "scheduler.params.warmup_num_steps") == 0:
        problems.append(
            Problem(
                "scheduler.params.warmup_num_steps",
                0,
                "DeepSpeed refuses a warm-up of 0 steps",
                "write auto (the runner finds an equal schedule), or remove the scheduler block from launcher.config_file",
            )
        )
    return problems


def fill(content: dict[str, Any], config: RunConfig, total_steps: int | None) -> dict[str, Any]:
    """The user's JSON without any `auto`: filled from the configuration, missing keys that would mean something else set.

    Raises:
        RequestError: naming every `auto` that nothing can fill.
    """
    own = render.deepspeed_config(config, total_steps)
    filled = copy.deepcopy(content)
    _fill_schedule(filled, own)
    unknown: list[str] = []
    _fill_node(filled, own, "", unknown)
    for key in (
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "steps_per_print",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
    ):
        filled.setdefault(key, own[key])
    filled["train_batch_size"] = own["train_batch_size"]
    if config.launcher.device == "cpu" and "optimizer" in own and isinstance(filled.get("optimizer"), dict):
        # DeepSpeed would compile its fused Adam first, for a minute, to compute the same on a CPU.
        params = filled["optimizer"].setdefault("params", {})
        params.setdefault("torch_adam", own["optimizer"]["params"]["torch_adam"])
        if params["torch_adam"] and config.optimizer.fused is True:
            params.setdefault("fused", True)
    if config.zero.stage == 3:
        filled["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    if unknown:
        raise RequestError([Problem(key, AUTO, "nothing in the run says what this is", "write a value into launcher.config_file") for key in unknown])
    return filled


def _fill_schedule(filled: dict[str, Any], own: dict[str, Any]) -> None:
    """A schedule whose warm-up is `auto` follows the run's: linear, at the same index as every other owner's."""
    block, ours = filled.get("scheduler"), own.get("scheduler")
    if not block or not ours or block.get("type") != ours["type"]:
        return
    params = block.setdefault("params", {})
    if params.get("warmup_num_steps") == AUTO:
        for key in ("warmup_type", "last_batch_iteration"):
            if key in ours["params"]:
                params.setdefault(key, ours["params"][key])


def _fill_node(node: dict[str, Any], own: Any, prefix: str, unknown: list[str]) -> None:
    for name, value in node.items():
        ours = own.get(name) if isinstance(own, dict) else None
        if isinstance(value, dict):
            _fill_node(value, ours, f"{prefix}{name}.", unknown)
        elif value == AUTO:
            if ours is None:
                unknown.append(f"{prefix}{name}")
            else:
                node[name] = ours
