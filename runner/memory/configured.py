"""The workload of a configured run: from its keys, its recipe's lengths and its model's facts. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner.adapters import adapter_of
from runner.config.resolve import resolve_machine
from runner.config.schema import RunConfig
from runner.config.sequence_limits import config_folder
from runner.engines import engine_of
from runner.memory.facts import Architecture, Family
from runner.memory.workload import FALLBACK_LENGTH, DataLengths, Workload
from runner.optimizers import optimizer_of

ADAPTER_CAVEAT = (
    "this is full fine-tuning: that an adapter's frozen weights have no gradients and no optimizer states, and may be "
    "quantised, is not counted; the run needs less"
)


def workload_from_config(config: RunConfig, world_size: int, lengths: DataLengths | None = None) -> Workload:
    """The workload of a configured run on `world_size` ranks (all machines together).

    Raises ValueError when the architecture is unknown: no `model.config`, no readable `config.json`.
    """
    # The one owner of what `auto` means; what it finds wrong is for preflight to say.
    resolved, _ = resolve_machine(config)
    source, target, said = _lengths(config, lengths)
    nodes = max(1, config.launcher.num_nodes)
    return Workload(
        architecture=architecture_of(config),
        micro_batch_size=config.train.micro_batch_size,
        source_length=source,
        target_length=target,
        length_source=said,
        precision="fp32" if resolved.precision.name == "auto" else resolved.precision.name,
        device="cuda" if resolved.launcher.device == "cuda" else "cpu",
        layout=engine_of(config).layout(resolved),
        gradient_checkpointing=config.train.gradient_checkpointing,
        gradient_accumulation_steps=resolved.train.gradient_accumulation_steps,
        num_processes=max(1, world_size // nodes),
        num_nodes=nodes,
        optimizer=optimizer_of(resolved.optimizer).states(resolved.optimizer),
        caveats=(ADAPTER_CAVEAT,) if adapter_of(config).label else (),
        optimizer_kernel="fused" if resolved.optimizer.fused is True else "foreach",
    )


def architecture_of(config: RunConfig) -> Architecture:
    """Architecture facts: the local folder's `config.json` where there is one, as in the run, else `model.config`, else
    the hub cache.
    """
    model = config.model
    facts: dict[str, Any] = dict(model.config)
    if model.path and (config_folder(model.path) / "config.json").is_file():
        facts = json.loads(
            (config_folder(model.path) / "config.json").read_text()
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
    """The task's keys with the recipe's own defaults, where the recipe file is at hand."""
    from runner.errors import RequestError
    from runner.recipe import load_recipe

    try:
        return dict(load_recipe(config).options.model_dump())
    except RequestError:
        return dict(config.task)
