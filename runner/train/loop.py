"""The training loop: windows of micro batches, one optimizer step each.

The loss of a step is the mean over all its items (rows or tokens), over ranks and accumulation, also
where the last window is smaller; what the libraries average is weighted accordingly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

from runner.config import plan
from runner.rundir.heartbeat import Heartbeat
from runner.train.batching import MicroBatch, deal, epoch_order, order_hash
from runner.train.progress import MetricsLog
from runner.train.ranks import sum_over_ranks


class TrainingDiverged(RuntimeError):
    """Too many losses in a row were not finite."""


@dataclass
class LoopState:
    """Where the run stands; saved with checkpoints.

    Attributes:
        epoch: the epoch under way, from 0.
        window: optimizer steps done in it.
        step: optimizer steps done in all.
        loss_sum, loss_steps: of the epoch so far, this rank's part, for the epoch's mean loss; on the device.
        nonfinite: losses in a row that were not finite.
        epoch_seconds: training seconds of the epoch before the checkpoint that was taken up.
    """

    epoch: int = 0
    window: int = 0
    step: int = 0
    loss_sum: Any = 0.0
    loss_steps: int = 0
    nonfinite: int = 0
    samples_seen: int = 0
    epoch_seconds: float = 0.0

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


def plan_epoch(run: Any, epoch: int) -> list[Window]:
    """This rank's windows of an epoch, in order."""
    train, world = run.train_split, run.accelerator.num_processes
    # Ordered by whole optimizer steps, then cut: the rows of a step depend neither on how it is accumulated nor on the
    # ranks.
    steps = epoch_order(train.lengths, run.config.train.seed, epoch, plan.global_batch_size(run.config), _batching(run))
    return [_window(run, _passes(step, run.config.train.micro_batch_size * world), world) for step in steps]


def _batching(run: Any) -> str:
    return "longest_first" if run.trial else run.config.train.batching


def _passes(rows: np.ndarray, per_pass: int) -> list[np.ndarray]:
    """The rows of an optimizer step, one forward pass of all ranks after the other."""
    return [rows[start : start + per_pass] for start in range(0, len(rows), per_pass)]


def _window(run: Any, group: list[np.ndarray], world: int) -> Window:
    rows = np.concatenate(group)
    batches = [deal(step, world)[run.accelerator.process_index] for step in group]
    items = int(run.train_split.items[rows].sum())
    return Window(
        batches=batches,
        shares=[_items(run, batch) / items for batch in batches],
        samples=len(rows),
        tokens=int(run.train_split.lengths[rows].sum()),
    )


class _Collated(torch.utils.data.Dataset[Any]):
    """Micro batches by index: what the data loader (and its workers) fetch is already collated."""

    def __init__(self, run: Any, batches: list[MicroBatch]) -> None:
        self._split, self._recipe, self._tokenizer, self._batches = run.train_split, run.recipe, run.tokenizer, batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._recipe.collate(self._split.rows(self._batches[index].rows), self._tokenizer)


def _batches(run: Any, planned: list[Window]) -> Iterator[Any]:
    """Collated micro batches on the device, through a loader that accelerate watches for the end of the epoch."""
    flat = [batch for window in planned for batch in window.batches]
    loader = DataLoader(
        _Collated(run, flat),
        batch_size=None,
        shuffle=False,
        num_workers=run.config.train.dataloader_workers,
        # Its own generator: without one each iterator draws from the global one, and a resumed run's dropout differs.
        generator=torch.Generator().manual_seed(0),
    )
    return iter(
        prepare_data_loader(loader, device=run.accelerator.device, num_processes=1, process_index=0, put_on_device=True)
    )


def train_epoch(run: Any, state: LoopState, total_steps: int, heartbeat: Heartbeat, log: MetricsLog | None) -> bool:
    """Train from `state` to the end of its epoch, or to `total_steps`.

    Returns:
        False where the run was asked to stop before (see `run.should_stop`).

    Raises:
        TrainingDiverged: after `train.max_nonfinite_steps` losses in a row that are not finite.
    """
    planned = plan_epoch(run, state.epoch)[state.window :]
    batches = _batches(run, planned)
    for window in planned:
        if state.step >= total_steps:
            break
        if run.should_stop(state.step):
            return False
        began = run.clock.read()
        learning_rate = run.prepared.learning_rate
        loss, norm = _optimizer_step(run, window, batches)
        seconds = run.clock.read() - began
        state.step, state.window = state.step + 1, state.window + 1
        state.samples_seen += window.samples
        run.times.step(seconds, window.samples, window.tokens)
        run.window = window
        _account(run, state, loss, norm, learning_rate, seconds, total_steps, heartbeat, log)
        run.after_step(state)
    return True


def _optimizer_step(run: Any, window: Window, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
    """Forward and backward over the window, then one optimizer step; returns this rank's part of
    the loss and the norm.
    """
    part = torch.zeros((), device=run.accelerator.device)
    for share in window.shares:
        with run.clock.phase("data_wait"):
            tensors = next(batches)
        with run.accelerator.accumulate(run.prepared.model):
            with run.clock.phase("forward"):
                loss = run.recipe.loss(run.prepared.model, tensors)
            part += loss.detach().float() * share
            with run.clock.phase("backward"):
                _backward(run, loss, share)
            with run.clock.phase("optimizer"):
                norm = _step(run)
    return part, norm


def _items(run: Any, batch: MicroBatch) -> int:
    return int(run.train_split.items[batch.rows].sum()) if batch.counted else 0


def _backward(run: Any, loss: torch.Tensor, share: float) -> None:
    """Backward, weighted so that the libraries' mean over ranks and accumulation is the mean over items."""
    accelerator = run.accelerator
    weight = share * accelerator.num_processes * accelerator.gradient_accumulation_steps
    if not math.isclose(weight, 1.0, rel_tol=1e-12):
        loss = loss * weight
    engine = getattr(accelerator, "deepspeed_engine_wrapped", None)
    if engine is None:
        accelerator.backward(loss)
    else:
        # accelerate's own call would take the optimizer step inside backward, where it could not be timed apart.
        engine.engine.set_gradient_accumulation_boundary(is_boundary=accelerator.sync_gradients)
        engine.engine.backward(loss)


def _step(run: Any) -> Any:
    """Clip, step, move the learning rate, clear gradients; only at the end of a window. Returns the gradient norm."""
    accelerator, prepared = run.accelerator, run.prepared
    if not accelerator.sync_gradients:
        return None
    engine = getattr(accelerator, "deepspeed_engine_wrapped", None)
    if engine is not None:
        engine.engine.step()
        norm = engine.engine.get_global_grad_norm()
    else:
        limit = run.config.train.gradient_clipping
        norm = accelerator.clip_grad_norm_(prepared.model.parameters(), limit if limit > 0 else math.inf)
        prepared.optimizer.step()
        prepared.optimizer.zero_grad()
    prepared.step_scheduler()
    return norm


def _account(
    run: Any,
    state: LoopState,
    part: torch.Tensor,
    norm: Any,
    learning_rate: float,
    seconds: float,
    total_steps: int,
    heartbeat: Heartbeat,
    log: MetricsLog | None,
) -> None:
    """Sum the loss; where it is logged, over ranks; watch for losses that are not finite; tell the outside.

    On a GPU nothing is read from the device but at logged steps: reading waits for it.
    """
    state.loss_sum, state.loss_steps = state.loss_sum + part.double(), state.loss_steps + 1
    logged = state.step % run.config.train.log_every == 0 or state.step in (1, total_steps)
    if not (logged or run.accelerator.device.type == "cpu"):
        heartbeat.beat(phase="training", step=state.step, total=total_steps, epoch=state.epoch)
        return
    loss = sum_over_ranks(run.accelerator, [float(part.item())])[0] if logged else float(part.item())
    state.nonfinite = 0 if math.isfinite(loss) else state.nonfinite + 1
    if state.nonfinite == 1:
        run.first_bad = (state.step, [int(row) for batch in run.window.batches for row in batch.rows])
    heartbeat.beat(
        phase="training", step=state.step, total=total_steps, epoch=state.epoch, **({"loss": loss} if logged else {})
    )
    if logged and log is not None:
        norm = float(norm) if norm is not None else None
        log.write(
            step=state.step,
            loss=loss,
            learning_rate=learning_rate,
            grad_norm=norm,
            seconds=seconds,
            epoch=state.epoch,
            elapsed_seconds=run.elapsed(),
            **_scaling(run),
        )
    if state.nonfinite >= run.config.train.max_nonfinite_steps:
        raise TrainingDiverged(_advice(run, state, learning_rate))


def _scaling(run: Any) -> dict[str, float]:
    """In fp16: the loss scale, and under DeepSpeed the optimizer steps skipped so far because gradients overflowed."""
    if run.config.precision.name != "fp16":
        return {}
    engine = getattr(run.accelerator, "deepspeed_engine_wrapped", None)
    if engine is None:
        return {"loss_scale": float(run.accelerator.scaler.get_scale())} if run.accelerator.scaler is not None else {}
    return {"loss_scale": float(engine.engine.optimizer.loss_scale), "skipped_steps": engine.engine.skipped_steps}


def _advice(run: Any, state: LoopState, learning_rate: float) -> str:
    first, rows = run.first_bad
    shown = ", ".join(map(str, rows[:16])) + (", …" if len(rows) > 16 else "")
    others = {"fp16": ", precision=bf16 or precision=fp32", "bf16": " or precision=fp32"}.get(
        run.config.precision.name, ""
    )
    return (
        f"the loss was not finite for {state.nonfinite} steps in a row, up to step {state.step} "
        f"(learning rate {learning_rate:g}, precision {run.config.precision.name}); it began at step {first}, where "
        f"this rank had rows {shown} of the training split; "
        f"try optimizer.lr={run.config.optimizer.lr / 10:g}{others}"
    )


def mean_loss(run: Any, state: LoopState) -> float | None:
    """Mean loss of the epoch's steps over all ranks."""
    total = sum_over_ranks(run.accelerator, [float(state.loss_sum)])[0]
    return total / state.loss_steps if state.loss_steps else None


def total_optimizer_steps(run: Any) -> int:
    """Optimizer steps of the run."""
    return plan.total_steps(len(run.train_split), run.config)


def first_order_hash(run: Any) -> str:
    """Hash of the first epoch's order, for the record."""
    train, config = run.train_split, run.config.train
    per_step = config.micro_batch_size * config.gradient_accumulation_steps * run.accelerator.num_processes
    return order_hash(epoch_order(train.lengths, config.seed, 0, per_step, _batching(run)))
