"""The checkpoint of engines in which every rank holds the whole training state: rank 0 writes it once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from runner.engines.rank import Prepared, RankError, StateWriter

WEIGHTS_AND_OPTIMIZER = "model_and_optimizer.pt"


def save(accelerator: Accelerator, prepared: Prepared, writer: StateWriter) -> None:
    """Write what is the same on every rank."""
    if not accelerator.is_main_process:
        return
    scaler = accelerator.scaler
    content = {
        "model": stored_weights(prepared.bare),
        "optimizer": prepared.base_optimizer.state_dict(),
        "scaler": scaler.state_dict() if scaler is not None else None,
    }
    writer.save(content, WEIGHTS_AND_OPTIMIZER)


def load(accelerator: Accelerator, prepared: Prepared, folder: Path) -> None:
    """Take up what `save` wrote; nothing in the file can be executed."""
    content: dict[str, Any] = torch.load(folder / WEIGHTS_AND_OPTIMIZER, map_location="cpu", weights_only=True)
    load_stored_weights(prepared.bare, content["model"])
    prepared.base_optimizer.load_state_dict(content["optimizer"])
    if content["scaler"] is not None and accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(content["scaler"])


def stored_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights and buffers of a checkpoint: frozen weights are not in it, they are loaded or drawn as at the start."""
    frozen = frozen_weights(model)
    if not frozen:
        return dict(model.state_dict())
    kept = {name for name, _ in model.named_parameters(remove_duplicate=False)} - frozen
    kept |= {name for name, _ in model.named_buffers()}
    return {name: value for name, value in model.state_dict().items() if name in kept}


def load_stored_weights(model: torch.nn.Module, stored: dict[str, torch.Tensor]) -> None:
    """Take up what `stored_weights` gave.

    Raises:
        RankError: where something is missing that is trained, or something stands in it that the model does not have.
    """
    frozen = frozen_weights(model)
    if not frozen:
        model.load_state_dict(stored)
        return
    outcome = model.load_state_dict(stored, strict=False)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    wrong = [*(name for name in outcome.missing_keys if name in trained), *outcome.unexpected_keys]
    if wrong:
        raise RankError(f"the checkpoint is of another adapter: {', '.join(wrong[:5])}")


def frozen_weights(model: torch.nn.Module) -> set[str]:
    """Names of the parameters that are not trained."""
    return {name for name, item in model.named_parameters(remove_duplicate=False) if not item.requires_grad}
