"""The learning rate of a run with an adapter: a model's file gives that of full fine-tuning."""

from __future__ import annotations

from collections.abc import Collection

from runner.adapters import adapter_of
from runner.config.schema import RunConfig


def with_adapter_rate(config: RunConfig, typed: Collection[str]) -> RunConfig:
    """The configuration with the learning rate that the adapter needs, where none was typed."""
    factor = adapter_of(config).learning_rate_factor
    if factor != 1 and not {"optimizer.lr", "optimizer"} & set(typed):
        config.optimizer.lr = float(f"{factor * config.optimizer.lr:.6g}")
    return config
