"""Batches collated ahead of the device, by a thread of the rank."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from typing_extensions import override

from runner.recipe import Batch


class Ahead(torch.utils.data.Dataset[Batch]):
    """Batches by number, asked for in order; while one is worked on, the next are made.

    Args:
        make: collates a batch.
        count: of batches.
        ahead: made beyond the one that was asked for; 0: none, by the thread that asks.
        pin: put them into page-locked memory, from which a GPU copies without the host's waiting.
    """

    def __init__(self, make: Callable[[int], Batch], count: int, ahead: int, pin: bool) -> None:
        self._make, self._count, self._ahead, self._pin = make, count, ahead, pin
        self._thread = ThreadPoolExecutor(1, "collate") if ahead else None
        self._made: dict[int, Future[Batch]] = {}

    def __len__(self) -> int:
        return self._count

    @override
    def __getitem__(self, index: int) -> Batch:
        if self._thread is None:
            return self._ready(index)
        for wanted in range(index, min(index + self._ahead + 1, self._count)):
            if wanted not in self._made:
                self._made[wanted] = self._thread.submit(self._ready, wanted)
        return self._made.pop(index).result()

    def _ready(self, index: int) -> Batch:
        batch = self._make(index)
        return {name: tensor.pin_memory() for name, tensor in batch.items()} if self._pin else batch
