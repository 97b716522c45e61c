"""One rank that trains one step under each method and prints the bytes of its live tensors (JSON, one line).

Started by test_memory_live.py, twice, with torch.distributed's environment variables.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

PLAIN = ("ddp", "fsdp", "fsdp_hybrid")  # torch's own optimizer steps
GROUP = 2  # ranks of a hybrid shard


def storages(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes of the distinct storages behind some tensors."""
    found = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in map(local, tensors)
        if t is not None and t.numel()
    }
    return sum(found.values())


def build(facts: dict[str, Any]) -> torch.nn.Module:
    import transformers

    facts = dict(facts)
    config = transformers.AutoConfig.for_model(facts.pop("model_type"), **facts)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).train()


def accelerator_for(method: str, zero: dict[str, Any], precision: str) -> Any:
    from accelerate import Accelerator, DeepSpeedPlugin, InitProcessGroupKwargs
    from accelerate.state import AcceleratorState, GradientState, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    assert not PartialState._shared_state
    os.environ.pop("ACCELERATE_USE_FSDP", None)
    if method.startswith("fsdp"):
        return fsdp_accelerator(precision, hybrid=method == "fsdp_hybrid")
    if method == "ddp":
        return Accelerator(cpu=True, mixed_precision="bf16" if precision == "bf16" else "no")
    if method == "zero3_hybrid":
        zero = {**zero, "zero_hpz_partition_size": GROUP}
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": precision == "bf16"},
        "zero_optimization": {**zero, "stage": int(method[4])},
        "zero_allow_untested_optimizer": True,
    }
    if method.endswith("_tensor"):
        config["tensor_parallel"] = {"autotp_size": GROUP, "vocab_parallel_lm_head": False}
    gloo = InitProcessGroupKwargs(backend="gloo")
    return Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config), kwargs_handlers=[gloo])


def fsdp_accelerator(precision: str, hybrid: bool) -> Any:
    """As runner/engines/fsdp/rank.py sets it up."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    os.environ["ACCELERATE_USE_FSDP"] = "true"
    PartialState(backend="gloo")
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["GPT2Block"],
        cpu_ram_efficient_loading=False,
    )
    groups = int(os.environ["WORLD_SIZE"]) // GROUP
    mesh = ParallelismConfig(dp_replicate_size=groups, dp_shard_size=GROUP) if hybrid else None
    precision = "bf16" if precision == "bf16" else "no"
    return Accelerator(fsdp_plugin=plugin, parallelism_config=mesh, mixed_precision=precision)


def local(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """This rank's shard of a distributed tensor."""
    return tensor.to_local() if tensor is not None and hasattr(tensor, "to_local") else tensor


def groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    tensors = list(model.parameters())
    return [
        {"params": [t for t in tensors if t.ndim >= 2], "weight_decay": 0.1},
        {"params": [t for t in tensors if t.ndim < 2], "weight_decay": 0.0},
    ]


def measure(method: str, model: Any, zero: dict[str, Any], precision: str) -> dict[str, int]:
    """One step: gradients are counted before it, parameters, states and master copies after it."""
    accelerator = accelerator_for(method, zero, precision)
    vocab_size = model.config.vocab_size
    optimizer = torch.optim.AdamW(groups(model), lr=1e-4)
    model, optimizer = accelerator.prepare(model, optimizer)
    ids = torch.randint(0, vocab_size, (2, 16))
    counted: dict[str, int] = {}
    loss = model(input_ids=ids, labels=ids).loss
    accelerator.backward(loss) if method in PLAIN else model.backward(loss)
    counted["gradients"] = storages(GRADIENTS[method.split("_")[0]](model))
    if method == "zero3_hybrid":
        counted["second_copy"] = storages(parameter.ds_secondary_tensor for parameter in model.parameters())
    optimizer.step() if method in PLAIN else model.step()
    parameters = [*model.parameters(), *(getattr(p, "ds_tensor", None) for p in model.parameters())]
    counted["parameters"] = storages(parameters)
    base = optimizer.optimizer if method in PLAIN else model.basic_optimizer
    counted["optimizer_states"] = storages(
        v for state in base.state.values() for v in state.values() if torch.is_tensor(v)
    )
    counted["master_weights"] = storages(MASTERS[method.split("_")[0]](model))
    return counted


def plain_gradients(model: Any) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def kept_gradients(engine: Any) -> list[torch.Tensor]:
    return [tensor for group in engine.optimizer.averaged_gradients.values() for tensor in group]


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "ddp": plain_gradients,
    "fsdp": plain_gradients,
    "zero0": plain_gradients,
    "zero1": kept_gradients,
    "zero2": kept_gradients,
    "zero3": lambda engine: [engine.optimizer.grad_partitions_flat_buffer],
}
MASTERS: dict[str, Callable[[Any], Any]] = {
    "ddp": lambda engine: [],
    "fsdp": lambda engine: [],
    "zero0": lambda engine: [tensor for group in getattr(engine.optimizer, "fp32_groups", []) for tensor in group],
    "zero1": lambda engine: engine.optimizer.single_partition_of_fp32_groups,
    "zero2": lambda engine: engine.optimizer.single_partition_of_fp32_groups,
    "zero3": lambda engine: engine.optimizer.fp32_partitioned_groups_flat,
}


def main() -> None:
    request = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    import deepspeed

    # Without this DeepSpeed compiles an op at its first start; nothing here needs it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    fresh = build(request["facts"])
    result = {
        method: measure(method, copy.deepcopy(fresh), request["zero"], request["precision"])
        for method in request["methods"]
    }
    with open(os.path.join(request["folder"], f"rank{os.environ['RANK']}.json"), "w") as file:
        json.dump(result, file)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    # All is written and the group is gone; now and then a thread of gloo aborts an interpreter that winds down.
    sys.stderr.flush()
    os._exit(0)
