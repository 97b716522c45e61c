"""The checkpoint of engines in which every rank holds the whole training state: rank 0 writes it once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from runner.engines.rank import Prepared, StateWriter

WEIGHTS_AND_OPTIMIZER = "model_and_optimizer.pt"


def save(accelerator: Accelerator, prepared: Prepared, writer: StateWriter) -> None:
    """Write what is the same on every rank."""
    if not accelerator.is_main_process:
        return
    scaler = accelerator.scaler
    content = {
        "model": prepared.bare.state_dict(),
        "optimizer": prepared.base_optimizer.state_dict(),
        "scaler": scaler.state_dict() if scaler is not None else None,
    }
    writer.save(content, WEIGHTS_AND_OPTIMIZER)


def load(accelerator: Accelerator, prepared: Prepared, folder: Path) -> None:
    """Take up what `save` wrote; nothing in the file can be executed."""
    content: dict[str, Any] = torch.load(folder / WEIGHTS_AND_OPTIMIZER, map_location="cpu", weights_only=True)
    prepared.bare.load_state_dict(content["model"])
    prepared.base_optimizer.load_state_dict(content["optimizer"])
    if content["scaler"] is not None and accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(content["scaler"])
