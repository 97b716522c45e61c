"""A class of bitsandbytes, which has no types."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def bitsandbytes_class(name: str) -> Callable[..., torch.optim.Optimizer]:
    """An optimizer class by its name."""
    found: Callable[..., torch.optim.Optimizer] = getattr(importlib.import_module("bitsandbytes.optim"), name)
    return found
