"""torch's DistributedDataParallel: every rank holds the whole training state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from runner import engines
from runner.config.schema import RunConfig
from runner.engines import base
from runner.engines.base import Saving
from runner.engines.ddp.memory import DdpLayout
from runner.errors import Problem
from runner.memory.workload import StateLayout


class Engine(base.Engine):
    """DDP under accelerate."""

    name = "ddp"
    order = 0

    @override
    def label(self, config: Mapping[str, object]) -> str:
        """The method's name."""
        return "DDP"

    @override
    def layout(self, config: RunConfig) -> StateLayout:
        """Everything whole on every rank."""
        return DdpLayout()

    def layouts(self, like: StateLayout) -> Iterable[StateLayout]:
        """One."""
        return [like if isinstance(like, DdpLayout) else DdpLayout()]

    @override
    def accelerate_section(self, config: RunConfig, run_dir: Path, ranks: int) -> dict[str, Any]:
        """MULTI_GPU on CPU, too: under MULTI_CPU accelerate starts one process."""
        precision = {"fp32": "no"}.get(config.precision.name, config.precision.name)
        return {"distributed_type": "MULTI_GPU" if ranks > 1 else "NO", "mixed_precision": precision}

    def environment(self, config: RunConfig) -> dict[str, str]:
        """On CPU accelerate has to be told so."""
        return {"ACCELERATE_USE_CPU": "true"} if config.launcher.device == "cpu" else {}

    @override
    def checkpoint_bytes(self, config: RunConfig, parameters: int) -> int:
        """fp32 weights and Adam's two moments, written once."""
        return parameters * (4 + 8)

    def problems(self, config: RunConfig) -> list[Problem]:
        """A fused kernel hides skipped steps."""
        if config.optimizer.fused is not True or config.precision.name != "fp16":
            return []
        why = "a fused step skips overflows inside its kernel, where the schedule does not see it"
        return [Problem("optimizer.fused", True, why, "use optimizer.fused=false, or precision=bf16")]

    def savings(self, config: RunConfig, several_ranks: bool) -> Iterator[Saving]:
        """Partitioning and offload are DeepSpeed's."""
        return engines.engine_named("deepspeed").savings(config, several_ranks)
