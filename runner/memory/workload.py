"""What is to be estimated: everything memory depends on, and nothing else.

A `Workload` is a value: two equal workloads need the same memory. `workload_from_config` makes one
from a run's configuration. This module imports neither torch nor transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from runner.config.resolve import resolve_machine
from runner.config.schema import RunConfig

Family = Literal["encoder", "seq2seq", "causal_lm"]
Precision = Literal["fp32", "bf16", "fp16"]
Place = Literal["none", "cpu", "nvme"]

BYTES_PER_ELEMENT: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
FALLBACK_LENGTH = 128


@dataclass(frozen=True)
class Architecture:
    """Which model class is built, from which facts.

    `facts` are the words of the transformers config class with `model_type` among them, as JSON text
    (sorted), so that the value is hashable and a model is built once per process.
    """

    family: Family
    facts: str
    num_labels: int = 2

    @classmethod
    def of(cls, family: Family, facts: Mapping[str, Any], num_labels: int = 2) -> Architecture:
        """An architecture from a mapping. Raises ValueError without a `model_type`."""
        if not facts.get("model_type"):
            raise ValueError("the architecture facts name no model_type, so no model class can be built from them")
        return cls(family, json.dumps(dict(facts), sort_keys=True), num_labels)

    def mapping(self) -> dict[str, Any]:
        """The facts as a fresh dictionary."""
        loaded: dict[str, Any] = json.loads(self.facts)
        return loaded


@dataclass(frozen=True)
class Buckets:
    """Communication settings of DeepSpeed, in elements, named as in its JSON."""

    reduce_bucket_size: int = 200_000_000
    allgather_bucket_size: int = 200_000_000
    overlap_comm: bool = True
    contiguous_gradients: bool = True
    sub_group_size: int = 1_000_000_000
    stage3_prefetch_bucket_size: int = 50_000_000
    stage3_param_persistence_threshold: int = 100_000
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_max_reuse_distance: int = 1_000_000_000


@dataclass(frozen=True)
class Workload:
    """One training step of one rank, as far as memory is concerned. Lengths are tokens, batches are rows."""

    architecture: Architecture
    micro_batch_size: int = 8
    source_length: int = FALLBACK_LENGTH
    target_length: int = 0
    length_source: str = "given"
    precision: Precision = "fp32"
    device: Literal["cpu", "cuda"] = "cuda"
    launcher: Literal["ddp", "deepspeed"] = "deepspeed"
    zero_stage: int = 2
    offload_optimizer: Place = "none"
    offload_params: Place = "none"
    gradient_checkpointing: bool = False
    gradient_accumulation_steps: int = 1
    num_processes: int = 2
    num_nodes: int = 1
    buckets: Buckets = field(default_factory=Buckets)
    weight_decay_groups: bool = True
    gradient_as_bucket_view: bool = False
    gradients_kept_between_steps: bool = False
    zero3_init: bool = False
    margin_fraction: float = 0.1
    optimizer_kernel: Literal["foreach", "loop", "fused"] = "foreach"

    @property
    def world_size(self) -> int:
        """Ranks over all machines."""
        return self.num_processes * self.num_nodes

    @property
    def stage(self) -> int:
        """ZeRO stage in effect: 0 under DDP."""
        return self.zero_stage if self.launcher == "deepspeed" else 0

    @property
    def compute_precision(self) -> Precision:
        """Format really computed in: DDP on a CPU ignores fp16 and computes fp32 (accelerate 1.15)."""
        ignored = self.launcher == "ddp" and self.device == "cpu" and self.precision == "fp16"
        return "fp32" if ignored else self.precision

    @property
    def autocast(self) -> bool:
        """Whether weights stay fp32 and autocast makes half-precision copies (DDP); DeepSpeed casts the weights."""
        return self.launcher == "ddp" and self.compute_precision != "fp32"

    @property
    def weight_bytes(self) -> int:
        """Bytes of one element of the weights the forward pass reads."""
        return 4 if self.launcher == "ddp" else BYTES_PER_ELEMENT[self.precision]

    def with_batch(self, micro_batch_size: int) -> Workload:
        """The same workload with another micro batch size."""
        return replace(self, micro_batch_size=micro_batch_size)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; the architecture facts appear as a mapping."""
        out = asdict(self)
        out["architecture"]["facts"] = self.architecture.mapping()
        out["world_size"] = self.world_size
        return out


@runtime_checkable
class DataLengths(Protocol):
    """Lengths of the tokenised data, where it is available (tokens of the longest row of any batch)."""

    @property
    def longest_source(self) -> int: ...  # noqa: D102

    @property
    def longest_target(self) -> int: ...  # noqa: D102

    @property
    def description(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class MeasuredLengths:
    """Token lengths read from data. `description` says from which, e.g. `longest of 3,668 rows of train`."""

    longest_source: int
    longest_target: int = 0
    description: str = "longest row of the tokenised data"


def workload_from_config(config: RunConfig, world_size: int, lengths: DataLengths | None = None) -> Workload:
    """The workload of a configured run on `world_size` ranks (all machines together).

    Raises ValueError when the architecture is unknown: no `model.config`, no readable `config.json`.
    """
    # The one owner of what `auto` means; what it finds wrong is for preflight to say.
    resolved, _ = resolve_machine(config)
    source, target, said = _lengths(config, lengths)
    zero = config.zero.model_dump(include=set(Buckets.__dataclass_fields__))
    nodes = max(1, config.launcher.num_nodes)
    under_deepspeed = config.launcher.name == "deepspeed"
    return Workload(
        architecture=architecture_of(config),
        micro_batch_size=config.train.micro_batch_size,
        source_length=source,
        target_length=target,
        length_source=said,
        precision="fp32" if resolved.precision.name == "auto" else resolved.precision.name,
        device="cuda" if resolved.launcher.device == "cuda" else "cpu",
        launcher=config.launcher.name,
        zero_stage=config.zero.stage if under_deepspeed else 0,
        offload_optimizer=config.offload.optimizer,
        offload_params=config.offload.params,
        gradient_checkpointing=config.train.gradient_checkpointing,
        gradient_accumulation_steps=resolved.train.gradient_accumulation_steps,
        num_processes=max(1, world_size // nodes),
        num_nodes=nodes,
        buckets=Buckets(**zero),
        optimizer_kernel="fused" if resolved.optimizer.fused is True else "foreach",
    )


def architecture_of(config: RunConfig) -> Architecture:
    """Architecture facts: the local folder's `config.json` where there is one, as in the run, else `model.config`, else
    the hub cache.
    """
    model = config.model
    facts: dict[str, Any] = dict(model.config)
    if model.path and (Path(model.path) / "config.json").is_file():
        facts = json.loads(
            (Path(model.path) / "config.json").read_text()
        )  # as the run builds it: model.config has no say there
    elif not facts.get("model_type") and model.hub_id:
        facts = _cached_facts(model.hub_id, model.revision) | facts
    family: Family = model.family  # type: ignore[assignment]
    labels = config.dataset.label_names
    return Architecture.of(family, facts, num_labels=len(labels) if labels else 2)


def _cached_facts(hub_id: str, revision: str | None) -> dict[str, Any]:
    """`config.json` of a model in the hub's cache, without asking the network; empty when it is not there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(hub_id, "config.json", revision=revision)
    return json.loads(Path(found).read_text()) if isinstance(found, str) else {}


def _lengths(config: RunConfig, lengths: DataLengths | None) -> tuple[int, int, str]:
    """Source and target length in tokens, and where they come from."""
    if lengths is not None:
        return lengths.longest_source, lengths.longest_target, lengths.description
    task = _task_options(config)
    if config.model.family == "seq2seq":
        source = int(task.get("max_source_length") or FALLBACK_LENGTH)
        target = int(task.get("max_target_length") or FALLBACK_LENGTH)
        return source, target, "configured maximum (task.max_source_length, task.max_target_length)"
    key = "block_size" if config.model.family == "causal_lm" else "max_length"
    if task.get(key):
        return int(task[key]), 0, f"configured maximum (task.{key})"
    return FALLBACK_LENGTH, 0, f"assumed {FALLBACK_LENGTH} tokens: the task sets no {key}"


def _task_options(config: RunConfig) -> dict[str, Any]:
    """The task's keys with the recipe's own defaults, where the recipe file is available."""
    from runner.errors import RequestError
    from runner.recipe import load_recipe

    try:
        return dict(load_recipe(config).options.model_dump())
    except RequestError:
        return dict(config.task)
