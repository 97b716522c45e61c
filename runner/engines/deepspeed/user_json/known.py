"""The keys of DeepSpeed 0.19's JSON and what their values must be, without importing DeepSpeed
(which imports torch).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

AUTO = "auto"
Kind = Literal["block", "bool", "int", "number", "text", "pair", "any"]


def _is_int(value: object) -> bool:
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    )  # 5e8 is a float for JSON


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


FITS: dict[Kind, Callable[[Any], bool]] = {
    "block": lambda value: isinstance(value, dict),
    "bool": lambda value: isinstance(value, bool),
    "int": _is_int,
    "number": _is_number,
    "text": lambda value: isinstance(value, str),
    "pair": lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)),
    "any": lambda _: True,
}
WORDS: dict[Kind, str] = {
    "block": "a block of keys",
    "bool": "true or false",
    "int": "a whole number",
    "number": "a number",
    "text": "text",
    "pair": "two numbers",
}


def _kinds(**names: str) -> dict[str, Kind]:
    """`bool="a b"` → {"a": "bool", "b": "bool"}."""
    return {name: kind for kind, text in names.items() for name in text.split()}  # type: ignore[misc]


TOP_LEVEL = _kinds(
    block="optimizer scheduler fp16 bf16 zero_optimization aio activation_checkpointing flops_profiler comms_logger "
    "tensorboard wandb csv_monitor comet checkpoint data_types"
    " torch_autocast hybrid_engine compile autotuning data_efficiency tensor_parallel expert_parallel "
    "weight_quantization datastates",
    bool="dump_state zero_allow_untested_optimizer zero_force_ds_cpu_optimizer wall_clock_breakdown memory_breakdown "
    "prescale_gradients disable_allgather dataloader_drop_last"
    " use_data_before_expert_parallelism managed_gradient_accumulation disable_python_gc",
    int="train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps steps_per_print "
    "sequence_parallel_size",
    number="gradient_clipping gradient_predivide_factor",
    text="communication_data_type seq_parallel_communication_data_type gradient_allreduce_op log_level",
    any="monitor_config pipeline timers gradient_accumulation_dtype zenflow",
)
ZERO = _kinds(
    block="offload_param offload_optimizer zenflow leaf_module",
    bool="contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions overlap_comm "
    "compute_grad_norm load_from_fp32_weights elastic_checkpoint"
    " stage3_gather_16bit_weights_on_model_save stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential "
    "ignore_unused_parameters legacy_stage1 round_robin_gradients"
    " parameter_alignment zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients "
    "memory_efficient_linear pipeline_loading_checkpoint"
    " override_module_apply log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory",
    int="stage reduce_bucket_size allgather_bucket_size sub_group_size stage3_prefetch_bucket_size "
    "stage3_param_persistence_threshold stage3_model_persistence_threshold"
    " stage3_max_live_parameters stage3_max_reuse_distance stage3_module_granularity_threshold zero_hpz_partition_size",
)
OPTIMIZER_PARAMS = _kinds(
    number="lr eps weight_decay",
    pair="betas",
    bool="torch_adam adam_w_mode fp32_optimizer_states bias_correction amsgrad set_grad_none foreach fused maximize "
    "capturable differentiable",
)
WARMUP_PARAMS = _kinds(
    number="warmup_min_lr warmup_max_lr", int="warmup_num_steps last_batch_iteration", text="warmup_type"
)
KNOWN: dict[str, dict[str, Kind]] = {  # by block; types are judged in runner.engines.deepspeed.user_json.blocks
    "": TOP_LEVEL,
    "zero_optimization": ZERO,
    "zero_optimization.offload_optimizer": _kinds(
        text="device nvme_path",
        int="buffer_count",
        bool="pin_memory pipeline_read pipeline_write fast_init super_offload",
        number="ratio cpuadam_cores_perc",
    ),
    "zero_optimization.offload_param": _kinds(
        text="device nvme_path", int="buffer_count buffer_size max_in_cpu", bool="pin_memory"
    ),
    "bf16": _kinds(
        bool="enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states"
    ),
    "fp16": _kinds(
        bool="enabled auto_cast consecutive_hysteresis fp16_master_weights_and_grads",
        number="loss_scale min_loss_scale",
        int="initial_scale_power loss_scale_window hysteresis",
    ),
    "aio": _kinds(
        int="block_size queue_depth thread_count intra_op_parallelism", bool="single_submit overlap_events use_gds"
    ),
    "optimizer": _kinds(any="type", block="params", bool="legacy_fusion"),
    "scheduler": _kinds(any="type", block="params"),
    "torch_autocast": _kinds(bool="enabled", any="dtype lower_precision_safe_modules"),
    "checkpoint": _kinds(
        bool="load_universal use_node_local_storage",
        any="tag_validation checkpoint_serialization writer parallel_write",
    ),
}
OPEN_ENDED: dict[
    str, dict[str, Kind]
    # blocks whose other keys are not judged here; those of `params` depend on the type
    # (runner.engines.deepspeed.user_json.blocks)
] = {
    "optimizer.params": OPTIMIZER_PARAMS,
    "scheduler.params": WARMUP_PARAMS | {"total_num_steps": "int"},
    **{
        name: {"enabled": "bool"}
        for name in (
            "flops_profiler",
            "comms_logger",
            "tensorboard",
            "wandb",
            "csv_monitor",
            "comet",
            "hybrid_engine",
            "autotuning",
            "data_efficiency",
            "weight_quantization",
        )
    },
}
ALIASES = {  # the field's own name, which DeepSpeed takes as well as the one it documents
    name: f"stage3_{name}"
    for name in (
        "prefetch_bucket_size",
        "param_persistence_threshold",
        "model_persistence_threshold",
        "max_live_parameters",
        "max_reuse_distance",
        "gather_16bit_weights_on_model_save",
        "module_granularity_threshold",
        "use_all_reduce_for_fetch_params",
        "allgather_sequential",
    )
}
_GONE = "DeepSpeed 0.19 has removed it"
REFUSED = {  # keys that DeepSpeed knows, or knew, and why they are not taken: (why, fix)
    **dict.fromkeys(
        (
            "nebula",
            "compression_training",
            "sparse_gradients",
            "eigenvalue",
            "sparse_attention",
            "elasticity",
            "graph_harvesting",
            "curriculum_learning",
            "progressive_layer_drop",
        ),
        (_GONE, "remove it"),
    ),
    **dict.fromkeys(
        (
            "zero_optimization.mics_shard_size",
            "zero_optimization.mics_hierarchical_params_gather",
            "zero_optimization.zeropp_loco_param",
        ),
        (_GONE, "remove it"),
    ),
    "amp": (f"{_GONE} (apex)", "remove it and use precision=bf16 or precision=fp16"),
    "zero_optimization.cpu_offload": ("DeepSpeed has replaced it", 'write "offload_optimizer": {"device": "cpu"}'),
    "zero_optimization.cpu_offload_param": ("DeepSpeed has replaced it", 'write "offload_param": {"device": "cpu"}'),
    "zero_optimization.cpu_offload_use_pin_memory": (
        "DeepSpeed ignores it",
        "write pin_memory into offload_optimizer or offload_param",
    ),
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": (
        "DeepSpeed has replaced it",
        "remove it: the runner sets stage3_gather_16bit_weights_on_model_save",
    ),
    "optimizer.params.max_grad_norm": ("DeepSpeed refuses it here", "write gradient_clipping at the top of the file"),
}
REFUSED_WHEN_TRUE = {
    "torch_autocast.enabled": (
        "the run would compute in another number format than its record says",
        "remove it and use precision=bf16 or precision=fp16",
    ),
    "checkpoint.load_universal": (
        "the runner decides at each resume in which form a checkpoint is loaded",
        "remove it",
    ),
}
