"""What all ranks do at the same optimizer step: stop, or write a checkpoint that rank 0 finds due by the clock."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from typing_extensions import override

from runner import rundir
from runner.engines.rank import group_timeout
from runner.train.context import RankStart

LEAD = 2  # optimizer steps that a host may be ahead of rank 0's


class Agreement(Protocol):
    """Asked by every rank before every optimizer step; answers alike on all of them."""

    def stop_before(self, step: int, checkpoint_due: bool) -> bool:
        """Whether to end before optimizer step `step` + 1.

        Args:
            checkpoint_due: on rank 0: ask for a checkpoint.
        """

    def checkpoint_after(self, step: int) -> bool:
        """Whether a checkpoint was asked for right after optimizer step `step`."""

    def close(self) -> None:
        """No step follows. Collective."""


class AgreementByFlags(Agreement):
    """Where hosts wait for each other in every step (on CPU): rank 0's flag names the step, and is there in time."""

    def __init__(self, folder: Path, is_main: bool) -> None:
        self._folder, self._is_main = folder, is_main

    @override
    def stop_before(self, step: int, checkpoint_due: bool) -> bool:
        if checkpoint_due and self._is_main:
            rundir.agree_on_step(self._folder, rundir.CHECKPOINT_AT, step + 1)
        return rundir.stop_requested(self._folder, step, self._is_main)

    @override
    def checkpoint_after(self, step: int) -> bool:
        return rundir.agreed_on_step(self._folder, rundir.CHECKPOINT_AT, step)

    @override
    def close(self) -> None:
        return


class AgreementByMessages(Agreement):
    """Where hosts run ahead of their devices: rank 0's wishes, broadcast between the hosts and read `LEAD` steps later.

    No device is waited for. A host that is more than `LEAD` steps ahead of rank 0's waits for it.

    Args:
        timeout: of a message.
    """

    def __init__(self, folder: Path, is_main: bool, timeout: timedelta) -> None:
        self._folder, self._is_main = folder, is_main
        self._group = dist.new_group(backend="gloo", timeout=timeout)
        self._sent: deque[tuple[torch.Tensor, dist.Work]] = deque()
        self._checkpoint_at: set[int] = set()

    @override
    def stop_before(self, step: int, checkpoint_due: bool) -> bool:
        wish = torch.zeros(2, dtype=torch.uint8)
        if self._is_main:
            wish[0], wish[1] = rundir.stop_is_wanted(self._folder), checkpoint_due
        work = dist.broadcast(wish, src=0, group=self._group, async_op=True)
        assert work is not None, "this rank is in the group"
        self._sent.append((wish, work))
        if len(self._sent) <= LEAD:
            return False
        stop, checkpoint = self._oldest()
        if checkpoint:
            self._checkpoint_at.add(step + 1)
        return stop

    @override
    def checkpoint_after(self, step: int) -> bool:
        return step in self._checkpoint_at

    @override
    def close(self) -> None:
        while self._sent:
            self._oldest()

    def _oldest(self) -> tuple[bool, bool]:
        wish, work = self._sent.popleft()
        work.wait()
        return bool(wish[0]), bool(wish[1])


def agreement_of(start: RankStart) -> Agreement:
    """The one that fits the device. Collective."""
    place, folder = start.place, start.output.folder
    if place.reads_are_free or place.world_size == 1:
        return AgreementByFlags(folder, place.is_main)
    return AgreementByMessages(folder, place.is_main, group_timeout(start.config))
