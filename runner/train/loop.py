"""The training loop: windows of micro batches, one optimizer step each.

The loss of a step is the mean over all its items (rows or tokens), over ranks and accumulation, also
where the last window is smaller; what the libraries average is weighted accordingly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

from runner.config import plan
from runner.data.prepared import PreparedSplit
from runner.engines.rank import GradientNorm
from runner.recipe import Batch
from runner.train.ahead import Ahead
from runner.train.batching import MicroBatch, deal, epoch_order, order_hash
from runner.train.context import RankContext
from runner.train.ranks import RankPlace
from runner.train.timing import StepTime


@dataclass
class LoopState:
    """Where the run stands; saved with checkpoints.

    Attributes:
        epoch: the epoch under way, from 0.
        window: optimizer steps done in it.
        step: optimizer steps done in all.
        loss_sum, loss_steps: of the epoch so far, this rank's part, for the epoch's mean loss; on the device.
        epoch_seconds: training seconds of the epoch before the checkpoint that was taken up.
        evaluated_step: optimizer steps done at the newest evaluation.
    """

    epoch: int = 0
    window: int = 0
    step: int = 0
    loss_sum: float | torch.Tensor = 0.0
    loss_steps: int = 0
    samples_seen: int = 0
    epoch_seconds: float = 0.0
    evaluated_step: int = 0

    def start_next_epoch(self) -> None:
        """Move on to the first window of the next epoch."""
        self.epoch, self.window = self.epoch + 1, 0
        self.loss_sum, self.loss_steps, self.epoch_seconds = 0.0, 0, 0.0


@dataclass
class Window:
    """One optimizer step as planned: this rank's micro batches, and the volume over all ranks."""

    batches: list[MicroBatch]
    shares: list[float]  # of the window's items, by micro batch
    samples: int
    tokens: int


@dataclass
class StepResult:
    """One optimizer step, done.

    Attributes:
        loss: this rank's part of the step's mean loss, on the device.
        learning_rate: the one it used.
    """

    window: Window
    loss: torch.Tensor
    grad_norm: GradientNorm
    learning_rate: float
    took: StepTime


class StepObserver(Protocol):
    """What happens around optimizer steps."""

    def is_over(self) -> bool:
        """Whether training ends here, before its last step; the same answer on every rank."""

    def should_stop(self, step: int) -> bool:
        """Whether the run was asked to end before optimizer step `step` + 1; the same answer on every rank."""

    def after_step(self, state: LoopState, result: StepResult) -> None:
        """Called after every optimizer step, with the position behind it."""


def plan_epoch(context: RankContext, epoch: int) -> list[Window]:
    """This rank's windows of an epoch, in order."""
    train, config = context.task.training_split, context.config
    # Ordered by whole optimizer steps, then cut: the rows of a step depend neither on how it is accumulated nor on the
    # ranks.
    steps = epoch_order(train.lengths, config.train.seed, epoch, plan.global_batch_size(config), context.batching)
    per_pass = config.train.micro_batch_size * context.place.data_parallel_size
    return [_window(context, _passes(step, per_pass)) for step in steps]


def _passes(rows: np.ndarray, per_pass: int) -> list[np.ndarray]:
    """The rows of an optimizer step, one forward pass of all ranks after the other."""
    return [rows[start : start + per_pass] for start in range(0, len(rows), per_pass)]


def _window(context: RankContext, group: list[np.ndarray]) -> Window:
    train, place = context.task.training_split, context.place
    rows = np.concatenate(group)
    batches = [deal(step, place.data_parallel_size)[place.data_parallel_rank] for step in group]
    items = int(train.items[rows].sum())
    return Window(
        batches=batches,
        shares=[_items(train, batch) / items for batch in batches],
        samples=len(rows),
        tokens=int(train.lengths[rows].sum()),
    )


def _items(split: PreparedSplit, batch: MicroBatch) -> int:
    return int(split.items[batch.rows].sum()) if batch.counted else 0


def _batches(context: RankContext, planned: list[Window]) -> Iterator[Batch]:
    """Collated micro batches on the device, through a loader that accelerate watches for the end of the epoch."""
    task, flat = context.task, [batch for window in planned for batch in window.batches]
    on_gpu, workers = context.place.device.type == "cuda", context.config.train.dataloader_workers

    def collated(index: int) -> Batch:
        return task.collated(task.training_split, flat[index].rows)

    # Workers are ahead by themselves, and torch's loader pins what they bring.
    ahead = 0 if workers else context.config.train.number_of_batches_ahead
    loader = DataLoader(
        Ahead(collated, len(flat), ahead, pin=on_gpu and not workers),
        batch_size=None,
        shuffle=False,
        num_workers=workers,
        pin_memory=on_gpu and workers > 0,
        # Its own generator: without one each iterator draws from the global one, and a resumed run's dropout differs.
        generator=torch.Generator().manual_seed(0),
    )
    return iter(
        prepare_data_loader(
            loader,
            device=context.place.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            non_blocking=on_gpu,
        )
    )


def train_epoch(context: RankContext, state: LoopState, total_steps: int, observer: StepObserver) -> bool:
    """Train from `state` to the end of its epoch, or to `total_steps`.

    Returns:
        False where the run was asked to stop before (see `StepObserver.should_stop`).
    """
    clock, prepared = context.timing.clock, context.prepared
    planned = plan_epoch(context, state.epoch)[state.window :]
    batches = _batches(context, planned)
    for window in planned:
        if state.step >= total_steps or observer.is_over():
            break
        if observer.should_stop(state.step):
            return False
        learning_rate, end = prepared.learning_rate, clock.start_step()
        loss, norm = _optimizer_step(context, window, batches)
        took = end()
        state.step, state.window = state.step + 1, state.window + 1
        state.samples_seen += window.samples
        context.timing.epochs.step(took, window.samples, window.tokens)
        observer.after_step(state, StepResult(window, loss, norm, learning_rate, took))
    return True


def _optimizer_step(
    context: RankContext, window: Window, batches: Iterator[Batch]
) -> tuple[torch.Tensor, GradientNorm]:
    """Forward and backward over the window, then one optimizer step; returns this rank's part of
    the loss and the norm.
    """
    engine, prepared, phase = context.engine, context.prepared, context.timing.clock.step_phase
    part = torch.zeros((), device=context.place.device)
    norm: GradientNorm = None
    for share in window.shares:
        with phase("data_wait"):
            tensors = next(batches)
        with engine.accumulate(prepared):
            with phase("forward"):
                loss = context.task.recipe.loss(prepared.model, tensors)
            part += loss.detach().float() * share
            with phase("backward"):
                engine.backward(_weighted(context, loss, share))
            with phase("optimizer"):
                norm = engine.step(prepared) if engine.window_ends else None
    return part, norm


def _weighted(context: RankContext, loss: torch.Tensor, share: float) -> torch.Tensor:
    """The loss, such that the libraries' mean over replicas and accumulation becomes the mean over items."""
    weight = share * context.place.data_parallel_size * context.config.train.gradient_accumulation_steps
    return loss if math.isclose(weight, 1.0, rel_tol=1e-12) else loss * weight


def mean_loss(place: RankPlace, state: LoopState) -> float | None:
    """Mean loss of the epoch's steps over all ranks."""
    total = place.sum_over_replicas([float(state.loss_sum)])[0]
    return total / state.loss_steps if state.loss_steps else None


def first_order_hash(context: RankContext) -> str:
    """Hash of the first epoch's order, for the record."""
    train, config = context.task.training_split, context.config
    steps = epoch_order(train.lengths, config.train.seed, 0, plan.global_batch_size(config), context.batching)
    return order_hash(steps)
