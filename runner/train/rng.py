"""The random number generators of a rank, as plain values that a safe loader accepts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def generator_states(device: torch.device) -> dict[str, Any]:
    """States of Python's, numpy's and torch's generators (and the GPU's)."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": (version, list(numbers), gauss),
        "numpy": (
            str(kind),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_generators(states: dict[str, Any], device: torch.device) -> None:
    """Put the generators back where they were."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"].cpu())
    if device.type == "cuda" and states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
