"""FSDP2 inside a rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from typing_extensions import override

from runner.config import plan
from runner.engines import rank, torch_step
from runner.engines.fsdp import shards
from runner.engines.fsdp.config import fsdp_section
from runner.engines.fsdp.layer_classes import chosen_layers
from runner.engines.optimizer import client_optimizer
from runner.engines.rank import (
    AcceleratorOptions,
    Factor,
    GradientNorm,
    Prepared,
    RankError,
    StateWriter,
    group_timeout,
)


class RankEngine(rank.RankEngine):
    """torch's `fully_shard` under accelerate."""

    distributed_types = frozenset({DistributedType.FSDP})

    def options(self) -> AcceleratorOptions:
        """On CPU accelerate 1.15 makes FSDP out of MULTI_GPU only, and silently trains separate models otherwise."""
        if self.config.launcher.device == "cpu":
            state = PartialState(backend="gloo", timeout=group_timeout(self.config))
            state.distributed_type = DistributedType.MULTI_GPU  # every instance shares its attributes
        return AcceleratorOptions(handlers=torch_step.scaler_settings(self.config.precision))

    def prepare(self, model: torch.nn.Module, factor: Factor) -> Prepared:
        """The same module, its parameters sharded in place."""
        plugin = self.accelerator.state.fsdp_plugin
        try:
            layers = chosen_layers(map(type, model.modules()), fsdp_section(self.config).wrap)
        except ValueError as error:
            raise RankError(str(error)) from None
        plugin.transformer_cls_names_to_wrap = layers
        with _embeddings_in_the_root_unit(model):
            prepared = torch_step.prepare(self.accelerator, model, client_optimizer(self, model), factor)
        whole = [name for name, parameter in prepared.bare.named_parameters() if not isinstance(parameter, DTensor)]
        if whole:
            raise RankError(f"FSDP left parameters unsharded: {', '.join(whole[:5])}")
        _check_shards(prepared.bare, plan.mesh(self.config).shard)
        # `generate` of encoder-decoders calls the encoder past the root, whose parameters are then not gathered.
        if hasattr(prepared.bare, "generate"):
            register_fsdp_forward_method(prepared.bare, "generate")
        return prepared

    def step(self, prepared: Prepared) -> GradientNorm:
        """Clip, step, clear; the norm is over all shards."""
        norm = torch_step.step(self.accelerator, prepared, self.config.train.gradient_clipping)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    @property
    def forward_is_collective(self) -> bool:
        """Parameters are gathered in every forward pass."""
        return True

    @contextlib.contextmanager
    def whole(self, parameter: torch.nn.Parameter) -> Iterator[torch.Tensor]:
        """Gathered."""
        yield parameter.full_tensor() if isinstance(parameter, DTensor) else parameter

    def own_part(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """The shard."""
        return parameter.to_local() if isinstance(parameter, DTensor) else parameter

    def save_state(self, prepared: Prepared, writer: StateWriter) -> None:
        """Every rank its shards, or rank 0 everything."""
        shards.save(self.accelerator, prepared, writer, fsdp_section(self.config).checkpoint == "full")

    @override
    def load_state(self, prepared: Prepared, folder: Path, converted: Path | None) -> None:
        """Each rank takes its rows out of the files, however many there are."""
        shards.load(self.accelerator, prepared, folder)


@contextlib.contextmanager
def _embeddings_in_the_root_unit(model: torch.nn.Module) -> Iterator[None]:
    """Keep accelerate from making units of the embeddings: tied ones that encoder and decoder share would be in two."""
    names = ("get_input_embeddings", "get_output_embeddings")
    for name in names:
        setattr(model, name, lambda: None)
    try:
        yield
    finally:
        for name in names:
            delattr(model, name)


def _check_shards(model: torch.nn.Module, ranks: int) -> None:
    """Compare over how many ranks parameters are really sharded with what was asked for.

    Raises:
        RankError: where they differ.
    """
    first = next(model.parameters())
    assert isinstance(first, DTensor)
    _, count = shards.own_shard(first)
    if count != ranks:
        raise RankError(f"asked for shards over {ranks} ranks, FSDP shards over {count}")
