"""torch's DistributedDataParallel: every rank holds the whole training state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from runner import engines
from runner.config.schema import RunConfig
from runner.engines import base
from runner.engines.base import FUSED_HIDES_OVERFLOWS, Saving
from runner.engines.ddp import script
from runner.engines.ddp.memory import DdpLayout
from runner.engines.standalone import Standalone
from runner.memory.workload import StateLayout
from runner.optimizers import optimizer_of


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
        """fp32 weights and optimizer states, written once."""
        return 4 * parameters + optimizer_of(config.optimizer).states(config.optimizer).part_bytes(parameters)

    @override
    def why_not_fused(self, config: RunConfig) -> tuple[str, str] | None:
        """A fused kernel hides skipped steps from torch's loss scaler."""
        return FUSED_HIDES_OVERFLOWS if config.precision.name == "fp16" else None

    def savings(self, config: RunConfig, several_ranks: bool) -> Iterator[Saving]:
        """Partitioning and offload are DeepSpeed's."""
        return engines.engine_named("deepspeed").savings(config, several_ranks)

    def standalone(self, config: RunConfig) -> Standalone | None:
        """Plain accelerate."""
        return script.standalone(config)
