"""A rank's memory: what it may use in a trial, and how full it was when something failed."""

from __future__ import annotations

from typing import Any

import torch

from runner.config.schema import RunConfig
from runner.machine import host_memory_bytes
from runner.memory.amounts import parse_bytes
from runner.train.timing import peak_memory_bytes


def limit_memory(config: RunConfig, device: torch.device) -> None:
    """In a trial of `fit` on a GPU: let torch's allocator refuse what is beyond the budget, as a smaller device would.

    On CPU nothing limits resident memory from inside; the runner watches it from outside.
    """
    if config.fit.memory_budget and device.type == "cuda":
        share = parse_bytes(config.fit.memory_budget) / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)


def memory_facts(device: torch.device) -> dict[str, Any]:
    """Device, peak and capacity in bytes, for the report of a failure."""
    on_gpu = device.type == "cuda"
    capacity = torch.cuda.get_device_properties(device).total_memory if on_gpu else host_memory_bytes()
    return {
        "device": str(device) if on_gpu else "cpu",
        "peak_bytes": peak_memory_bytes(device.type),
        "capacity_bytes": capacity,
    }
