"""DeepSpeed ZeRO: training state partitioned over ranks, and offloaded where asked for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from runner.config import plan
from runner.config.schema import RunConfig
from runner.engines import base
from runner.engines.base import EngineFile, OpBuild, Rule, Saving
from runner.engines.deepspeed import choices, json_file, nvme, ops, script, software, swap_folder, toolchain, user_json
from runner.engines.deepspeed.config import offload_section, on_cpu_adam, zero_section
from runner.engines.deepspeed.memory import Buckets, ZeroLayout, zero_label
from runner.engines.standalone import Standalone
from runner.errors import Problem
from runner.machine import Finding
from runner.memory.workload import StateLayout, Workload
from runner.optimizers import optimizer_of
from runner.parallel import mesh
from runner.parallel.tensor import why_not

if TYPE_CHECKING:
    from runner.checkpoint.folders import Checkpoint

OFFLOADS = {"optimizer_cpu": ("cpu", "none"), "cpu": ("cpu", "cpu")}  # option → place of optimizer states, parameters


class Engine(base.Engine):
    """ZeRO stages 0 to 3 under accelerate."""

    name = "deepspeed"
    order = 1
    preloaded = ("deepspeed", "runner.engines.deepspeed.preloading")
    degrees = frozenset({"hybrid_shard", "tensor"})

    def label(self, config: Mapping[str, object]) -> str:
        """`ZeRO-2`, `ZeRO-3 + CPU offload`, …"""
        zero, offload = config.get("zero"), config.get("offload")
        stage = zero.get("stage") if isinstance(zero, Mapping) else None
        if not isinstance(stage, int):
            return "unknown"
        places = offload if isinstance(offload, Mapping) else {}
        return zero_label(stage, places.get("optimizer"), places.get("params"))

    def layout(self, config: RunConfig) -> StateLayout:
        """The configured stage and offload."""
        zero, offload = zero_section(config), offload_section(config)
        buckets = Buckets(**zero.model_dump(include=set(Buckets.__dataclass_fields__)))
        pool = offload.buffer_count * json_file.nvme_buffer_elements(config) if offload.params == "nvme" else 0
        return ZeroLayout(
            zero.stage,
            offload.optimizer,
            offload.params,
            buckets,
            zero.partition_at_load,
            pool,
            config.parallel.hybrid_shard,
            config.parallel.tensor,
        )

    def layouts(self, like: StateLayout) -> Iterable[StateLayout]:
        """Every stage with every offload to the CPU that it allows."""
        buckets = like.buckets if isinstance(like, ZeroLayout) else Buckets()
        for stage in range(4):
            yield ZeroLayout(stage, buckets=buckets)
            if stage >= 1:
                yield ZeroLayout(stage, "cpu", buckets=buckets)
            if stage == 3:
                yield ZeroLayout(stage, "cpu", "cpu", buckets=buckets)
        if isinstance(like, ZeroLayout) and (like.hybrid_shard or like.tensor > 1):
            yield like

    def split_layouts(self, workload: Workload) -> Iterable[StateLayout]:
        """hpZ, and layers shared by ranks of one machine where the model can be split."""
        like = workload.layout
        buckets = like.buckets if isinstance(like, ZeroLayout) else Buckets()
        for degree in mesh.shown_degrees(workload.world_size - 1, workload.world_size):
            yield ZeroLayout(3, buckets=buckets, hybrid_shard=degree)
        for degree in mesh.shown_degrees(workload.num_processes, workload.num_processes):
            if why_not(workload.architecture.mapping(), degree) is None:
                yield from (ZeroLayout(stage, buckets=buckets, tensor=degree) for stage in (1, 2, 3))

    @override
    def accelerate_section(self, config: RunConfig, run_dir: Path, ranks: int) -> dict[str, Any]:
        """accelerate refuses mixed_precision and the like beside a DeepSpeed file: they stand in the file."""
        section = {
            "deepspeed_config_file": str(run_dir / json_file.FILE),
            "zero3_init_flag": self.partitions_at_load(config),
            # Over several machines never accelerate's pdsh launcher: it writes the environment into a file all can
            # read.
            **({"deepspeed_multinode_launcher": "standard"} if config.launcher.num_nodes > 1 else {}),
        }
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": section}

    def files(
        self, config: RunConfig, run_dir: Path, total_steps: int | None, own_file: EngineFile | None
    ) -> dict[str, str]:
        """`ds_config.json`, with NVMe offload in the run's own folder."""
        content = own_file or json_file.deepspeed_config(config, total_steps)
        return {json_file.FILE: json_file.as_text(swap_folder.into_own_folder(content, run_dir))}

    def environment(self, config: RunConfig) -> dict[str, str]:
        """Where compiled ops lie; on CPU DeepSpeed has to be told so."""
        folder = ops.extensions_dir(config.cache_dir, config.launcher.device)
        variables = {"TORCH_EXTENSIONS_DIR": str(folder)}
        return variables | ({"DS_ACCELERATOR": "cpu"} if config.launcher.device == "cpu" else {})

    def checkpoint_bytes(self, config: RunConfig, parameters: int) -> int:
        """fp32 master copies and optimizer states; the weights again but at stage 3, which writes only placeholders."""
        half = config.precision.name in ("bf16", "fp16")
        stage = zero_section(config).stage
        weights = 0 if stage == 3 else 2 if half else 4
        master = 4 if stage > 0 or half else 0
        states = optimizer_of(config.optimizer).states(config.optimizer).part_bytes(parameters)
        return parameters * (weights + master) + states

    def adopt(self, config: RunConfig, typed: frozenset[str]) -> tuple[EngineFile | None, list[Problem]]:
        """A DeepSpeed JSON of the user's."""
        return user_json.adopt(config, typed)

    def complete(self, own_file: EngineFile, config: RunConfig, total_steps: int | None) -> EngineFile:
        """Without any `auto`."""
        return user_json.fill(own_file, config, total_steps)

    def length_problems(self, own_file: EngineFile | None, config: RunConfig, total: int | None) -> list[Problem]:
        """A `total_num_steps` other than the run's."""
        return user_json.other_length(own_file, config, total)

    def fixed_batch(self, config: RunConfig, with_accumulation: bool) -> list[Problem]:
        """Batch numbers in the user's JSON."""
        return user_json.fixed_batch(config, with_accumulation)

    def fixed_method(self, config: RunConfig) -> bool:
        """A JSON fixes stage and offload."""
        return config.launcher.config_file is not None

    def resolve_owners(self, config: RunConfig, total_steps_known: bool) -> list[Problem]:
        """DeepSpeed owns what it can do exactly."""
        return choices.owner_problems(config, total_steps_known)

    def problems(self, config: RunConfig) -> list[Problem]:
        """Stage, offload and number format."""
        return choices.choice_problems(config)

    def missing_values(self, config: RunConfig) -> list[Problem]:
        """A folder for NVMe offload."""
        return choices.missing_folder(config)

    def problems_of_others(self, config: RunConfig) -> list[Problem]:
        """Stage and offload in a run of another engine."""
        return choices.unused_choices(config)

    def software_problems(self, config: RunConfig, own_file: EngineFile | None) -> list[Problem]:
        """DeepSpeed itself and what its ops are built with."""
        return software.software_problems(config, own_file)

    def start_problems(self, config: RunConfig) -> list[Problem]:
        """The folder of NVMe offload."""
        return nvme.check_nvme(config)

    def rules(self) -> tuple[Rule, ...]:
        """When `zero.*`, `offload.*` and the like matter."""
        return choices.RULES

    def partitions_at_load(self, config: RunConfig) -> bool:
        """zero.Init, where asked for at stage 3."""
        zero = zero_section(config)
        return zero.stage == 3 and zero.partition_at_load

    @override
    def cuts_weights(self, config: RunConfig) -> str | None:
        """Stages 1 to 3 flatten weights and cut them anywhere; ranks that share a layer hold parts of it."""
        stage = zero_section(config).stage
        degree = config.parallel.tensor
        return f"ZeRO {stage}" if stage else f"parallel.tensor={degree}" if degree > 1 else None

    @override
    def offloads_optimizer(self, config: RunConfig) -> bool:
        """To host memory or NVMe."""
        return offload_section(config).optimizer != "none"

    @override
    def why_not_fused(self, config: RunConfig) -> tuple[str, str] | None:
        """CPU Adam is a kernel of its own."""
        return choices.FUSED_UNDER_CPU_ADAM if on_cpu_adam(config) else None

    def optimizer_on_host(self, config: RunConfig) -> bool:
        """CPU Adam."""
        return on_cpu_adam(config)

    def optimizer_words(self, config: RunConfig, own_file: EngineFile | None) -> str:
        """The class that DeepSpeed builds."""
        if own_file is not None and "optimizer" in own_file:
            name = user_json.adam_class(own_file, config)
        else:
            name = "DeepSpeedCPUAdam" if on_cpu_adam(config) else super().optimizer_words(config, own_file)
        return name + (" (offloaded states)" if on_cpu_adam(config) else "")

    def owner_words(self, config: RunConfig, owner: str) -> str:
        """The JSON, and which one."""
        if owner != "deepspeed":
            return super().owner_words(config, owner)
        return (
            f"the DeepSpeed JSON ({config.launcher.config_file})"
            if config.launcher.config_file
            else ("the DeepSpeed JSON")
        )

    def schedule_words(self, config: RunConfig, own_file: EngineFile | None, total: int | None) -> str:
        """What the user's JSON says of the schedule that no key says."""
        return user_json.schedule_words(own_file, config, total)

    def choices(self, config: RunConfig) -> dict[str, str]:
        """Launcher, stage and offload."""
        return {
            "launcher": self.name,
            "zero_stage": str(zero_section(config).stage),
            "offload": offload_section(config).name,
        }

    def savings(self, config: RunConfig, several_ranks: bool) -> Iterator[Saving]:
        """Higher stages, then the optimizer on the CPU, then parameters, too; also for runs that are not DeepSpeed's
        yet.
        """
        offload = offload_section(config)
        stage = zero_section(config).stage if config.launcher.name == self.name else 0
        if several_ranks:
            yield from (self._saving(higher, None) for higher in range(stage + 1, 4))
        if offload.optimizer == "none":
            yield from (self._saving(with_offload, "optimizer_cpu") for with_offload in range(max(stage, 2), 4))
        if offload.params == "none":
            yield self._saving(3, "cpu")

    def _saving(self, stage: int, offload: str | None) -> Saving:
        chosen = {"launcher": self.name, "zero_stage": str(stage)} | ({"offload": offload} if offload else {})
        return Saving(chosen, offload is not None, stage == 1, partial(_apply, stage=stage, offload=offload))

    @contextlib.contextmanager
    def run_resources(self, config: RunConfig, run_dir: Path) -> Iterator[None]:
        """The swap folder of NVMe offload."""
        with swap_folder.swap_files(config, run_dir):
            yield

    def build_ops(self, config: RunConfig, own_file: EngineFile | None, build: OpBuild) -> dict[str, float]:
        """Ops that ranks will load."""
        needed = ops.needed_ops(config, own_file)
        return ops.OpBuilder(config, build).build(needed) if needed else {}

    def build_job(self, run_dir: Path) -> dict[str, Any]:
        """The ops that `build_ops` found missing."""
        return ops.build_ops(run_dir)

    def machine_findings(self) -> Iterable[Finding]:
        """Compiled ops."""
        return toolchain.findings()

    def cache_folders(self) -> dict[str, base.CacheFolder]:
        """Compiled ops; a folder in which one is being built is left."""
        return {ops.CACHE: base.CacheFolder("compiled DeepSpeed ops", ops.remove_built, ops.lock_of)}

    def checkpoint_problems(self, config: RunConfig, ranks_before: int) -> list[Problem]:
        """An optimizer on NVMe is restored wrongly; layers that ranks share are not cut anew."""
        ranks, degree = plan.world_size(config), config.parallel.tensor
        if degree > 1 and ranks != ranks_before:
            why = f"a checkpoint of parallel.tensor={degree} is resumed on as many ranks as wrote it, {ranks_before}"
            return [Problem("launcher.num_processes", config.launcher.num_processes, why, "leave it out")]
        if offload_section(config).optimizer != "nvme":
            return []
        why = "DeepSpeed silently restores an optimizer on NVMe wrongly (losses after the resume differ)"
        fix = "start a new run; with offload=cpu it could be resumed exactly"
        return [Problem("offload.optimizer", "nvme", why, fix)]

    def convert_checkpoint(
        self, checkpoint: Checkpoint, ranks: int, log: Path, say: base.Say, stop_asked: Callable[[], bool]
    ) -> None:
        """Partitions are cut anew for another number of ranks."""
        from runner.engines.deepspeed.universal_checkpoint import convert

        before = checkpoint.manifest.world_size
        if checkpoint.manifest.zero_stage and before != ranks:
            say(f"converting {checkpoint.path.name} from {before} to {ranks} ranks")
            convert(checkpoint, log, stop_asked)

    def rerender(self, config: RunConfig, run_dir: Path) -> dict[str, str]:
        """The JSON keeps what it says but the batch and whether memory is pinned."""
        content = self.file_of_run(run_dir)
        if content is None:
            return {}
        json_file.set_batch(content, config)
        json_file.set_hybrid_shard(content.get("zero_optimization", {}), config)
        for block in ("offload_optimizer", "offload_param"):
            place = content.get("zero_optimization", {}).get(block) or {}
            if "pin_memory" in place:
                place["pin_memory"] = offload_section(config).pin_memory and config.launcher.device == "cuda"
        return {json_file.FILE: json_file.as_text(content)}

    def file_of_run(self, run_dir: Path) -> EngineFile | None:
        """`ds_config.json`."""
        path = run_dir / json_file.FILE
        content: EngineFile | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        return content

    def standalone(self, config: RunConfig) -> Standalone | None:
        """The engine under plain accelerate; none for a model partitioned at load, nor for NVMe and its folder."""
        if self.partitions_at_load(config) or offload_section(config).nvme_path:
            return None
        return script.standalone(config)


def _apply(config: RunConfig, stage: int, offload: str | None) -> None:
    """Choose DeepSpeed with this stage and offload, in place."""
    config.launcher.name = Engine.name
    zero_section(config).stage = stage
    if offload is not None:
        section = offload_section(config)
        section.name = offload
        section.optimizer, section.params = OFFLOADS[offload]  # type: ignore[assignment]
