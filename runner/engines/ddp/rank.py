"""DDP inside a rank."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate.utils import DistributedType
from typing_extensions import override

from runner.engines import rank, replicated, torch_step
from runner.engines.optimizer import client_optimizer
from runner.engines.rank import AcceleratorOptions, Factor, GradientNorm, Prepared, StateWriter


class RankEngine(rank.RankEngine):
    """torch's DistributedDataParallel under accelerate."""

    distributed_types = frozenset({DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU})

    def options(self) -> AcceleratorOptions:
        """Without `cpu=True` accelerate on CPU believes in one process."""
        on_cpu = self.config.launcher.device == "cpu"
        return AcceleratorOptions(cpu=on_cpu, handlers=torch_step.scaler_settings(self.config.precision))

    def prepare(self, model: torch.nn.Module, factor: Factor) -> Prepared:
        """The DDP module, and torch's optimizer."""
        return torch_step.prepare(self.accelerator, model, client_optimizer(self, model), factor)

    def step(self, prepared: Prepared) -> GradientNorm:
        """Clip, step, clear."""
        return torch_step.step(self.accelerator, prepared, self.config.train.gradient_clipping)

    def save_state(self, prepared: Prepared, writer: StateWriter) -> None:
        """Once, by rank 0."""
        replicated.save(self.accelerator, prepared, writer)

    @override
    def load_state(self, prepared: Prepared, folder: Path, converted: Path | None) -> None:
        """The same on every rank, on any number of them."""
        replicated.load(self.accelerator, prepared, folder)
