"""The optimizers: an object for each, which knows its keys, its memory, what it cannot do, and how it is built.

Nobody outside asks which one it is. Importing this room imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.optimizers.adafactor import Adafactor
from runner.optimizers.adamw import AdamW
from runner.optimizers.adamw_8bit import AdamW8bit
from runner.optimizers.base import Optimizer
from runner.optimizers.lion import Lion
from runner.optimizers.muon import Muon
from runner.optimizers.sgd import Sgd

if TYPE_CHECKING:
    from runner.config.optimization import OptimizerConfig

OPTIMIZERS: dict[str, Optimizer] = {
    optimizer.name: optimizer for optimizer in (AdamW(), Sgd(), Adafactor(), Lion(), AdamW8bit(), Muon())
}


def optimizer_of(config: OptimizerConfig) -> Optimizer:
    """The chosen optimizer."""
    return OPTIMIZERS[config.name]


def reads(key: str) -> list[str]:
    """Optimizers that read a key of the section `optimizer`."""
    return [optimizer.name for optimizer in OPTIMIZERS.values() if key in optimizer.keys]
