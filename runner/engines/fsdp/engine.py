"""torch's FSDP2 under accelerate: parameters, gradients and optimizer states sharded over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from runner.config import plan
from runner.config.schema import RunConfig
from runner.config.sequence_limits import architecture_facts
from runner.engines import base
from runner.engines.base import FUSED_HIDES_OVERFLOWS, Rule
from runner.engines.fsdp.config import fsdp_section
from runner.engines.fsdp.layer_classes import layer_classes, unknown_classes
from runner.engines.fsdp.memory import FsdpLayout, fsdp_label
from runner.errors import Problem
from runner.memory.workload import StateLayout, Workload
from runner.optimizers import optimizer_of
from runner.parallel import mesh
from runner.parallel.mesh import Mesh


class Engine(base.Engine):
    """FSDP2 under accelerate."""

    name = "fsdp"
    order = 2
    degrees = frozenset({"hybrid_shard"})

    def label(self, config: Mapping[str, object]) -> str:
        """`FSDP`, `FSDP without resharding`."""
        section = config.get("fsdp")
        return fsdp_label(not (isinstance(section, Mapping) and section.get("reshard_after_forward") is False))

    def layout(self, config: RunConfig) -> StateLayout:
        """Everything sharded."""
        return FsdpLayout(fsdp_section(config).reshard_after_forward, config.parallel.hybrid_shard)

    def layouts(self, like: StateLayout) -> Iterable[StateLayout]:
        """With and without resharding, and the configured one."""
        own = [like] if isinstance(like, FsdpLayout) and like.hybrid_shard else []
        return [FsdpLayout(True), FsdpLayout(False), *own]

    def split_layouts(self, workload: Workload) -> Iterable[StateLayout]:
        """Groups that shard among themselves."""
        degrees = mesh.shown_degrees(workload.world_size - 1, workload.world_size)
        return [FsdpLayout(True, degree) for degree in degrees]

    @override
    def accelerate_section(self, config: RunConfig, run_dir: Path, ranks: int) -> dict[str, Any]:
        """Complete: accelerate's defaults differ between its versions of FSDP."""
        section = fsdp_section(config)
        layers = section.wrap or layer_classes(str(config.model.config.get("model_type", "")))
        settings: dict[str, Any] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": section.reshard_after_forward,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_state_dict_type": "FULL_STATE_DICT" if section.checkpoint == "full" else "SHARDED_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_offload_params": False,
            "fsdp_activation_checkpointing": False,  # train.gradient_checkpointing is the model's own
        }
        if layers:
            settings["fsdp_transformer_layer_cls_to_wrap"] = ",".join(layers)
        precision = "no" if config.precision.name == "fp32" else config.precision.name
        rendered = {"distributed_type": "FSDP", "mixed_precision": precision, "fsdp_config": settings}
        if config.parallel.hybrid_shard is not None:
            rendered["parallelism_config"] = _replicas_of_shards(plan.mesh(config))
        return rendered

    @override
    def checkpoint_bytes(self, config: RunConfig, parameters: int) -> int:
        """fp32 weights and optimizer states, each shard once."""
        return 4 * parameters + optimizer_of(config.optimizer).states(config.optimizer).part_bytes(parameters)

    @override
    def cuts_weights(self, config: RunConfig) -> str | None:
        """Rows of every tensor."""
        return "FSDP"

    @override
    def shards_tensors(self, config: RunConfig) -> bool:
        """DTensors."""
        return True

    @override
    def why_not_fused(self, config: RunConfig) -> tuple[str, str] | None:
        """A fused kernel hides skipped steps from torch's loss scaler, and has to know sharded tensors."""
        if not optimizer_of(config.optimizer).fused_on_shards:
            why = f"torch's fused kernel of {config.optimizer.name} does not know sharded tensors"
            return why, "leave it out, or use launcher=ddp"
        return FUSED_HIDES_OVERFLOWS if config.precision.name == "fp16" else None

    def quantized_storage(self, config: RunConfig) -> str:
        """Only floating-point weights are sharded: packed ones are stored as the run's own type."""
        return "fp32" if config.precision.name == "auto" else config.precision.name

    def problems(self, config: RunConfig) -> list[Problem]:
        """One rank has nothing to shard; fp16 is unproved."""
        found = []
        if config.launcher.num_processes == 1 and config.launcher.num_nodes == 1:  # `auto` is resolved before a run
            why = "FSDP shards over ranks, and there is one only"
            fix = "use launcher.num_processes=2 or more, or launcher=ddp"
            found.append(Problem("launcher", self.name, why, fix))
        if config.precision.name == "fp16" and config.launcher.device == "cuda":
            why = "loss scaling over shards has not been proved here"
            found.append(Problem("precision", "fp16", why, "use precision=bf16"))
        return found + _unknown_wrap(config)

    def rules(self) -> tuple[Rule, ...]:
        """FSDP's keys matter under FSDP."""
        keys = ("fsdp.reshard_after_forward", "fsdp.wrap", "fsdp.checkpoint")
        why = "only launcher=fsdp reads it"
        return (
            Rule(keys, lambda config: config.launcher.name == self.name, why, "add launcher=fsdp, or leave it out"),
        )


def _unknown_wrap(config: RunConfig) -> list[Problem]:
    """Classes to wrap that the model's code does not have."""
    kind, wanted = str(architecture_facts(config.model).get("model_type", "")), fsdp_section(config).wrap or []
    missing = unknown_classes(kind, wanted)
    if not missing:
        return []
    own = layer_classes(kind)
    why = f"the code of model_type={kind} has no {', '.join(missing)}"
    fix = f"use 'fsdp.wrap=[{','.join(own)}]', or leave it out" if own else "leave it out"
    return [Problem("fsdp.wrap", ",".join(wanted), why, fix)]


def _replicas_of_shards(ranks: Mesh) -> dict[str, int]:
    """accelerate's block for groups that shard among themselves; complete, as it passes nulls on as words."""
    return {
        "parallelism_config_dp_replicate_size": ranks.groups,
        "parallelism_config_dp_shard_size": ranks.shard,
        "parallelism_config_tp_size": 1,
        "parallelism_config_cp_size": 1,
    }
