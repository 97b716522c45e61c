"""What is said of optimizer steps: the heartbeat, `metrics.jsonl`, and a watch for losses that are not finite."""

from __future__ import annotations

import math

import torch

from runner.train.batching import MicroBatch
from runner.train.context import RankContext
from runner.train.loop import LoopState, StepResult
from runner.train.loss_watch import BadLosses, LossWatch
from runner.train.progress import MetricsLog
from runner.train.ranks import parameter_checksum


class TrainingDiverged(RuntimeError):
    """Too many losses in a row were not finite."""


class StepLog:
    """Called after every optimizer step.

    Args:
        total_steps: of the run.
        log: on rank 0.
    """

    def __init__(self, context: RankContext, total_steps: int, log: MetricsLog | None) -> None:
        self._context, self._total, self._log = context, total_steps, log
        self._watch = LossWatch(context.place.device)
        self._bad = BadLosses(0, 0, 0)
        self._rows: dict[int, list[MicroBatch]] = {}  # of the steps since the watch was read
        self._bad_rows: list[int] = []

    def step(self, state: LoopState, result: StepResult) -> None:
        """Sum the loss; where it is logged, over ranks; watch for losses that are not finite; tell the outside.

        On a GPU nothing is read from the device but at logged steps: reading waits for it.

        Raises:
            TrainingDiverged: after `train.max_nonfinite_steps` losses in a row that are not finite.
        """
        context = self._context
        state.loss_sum, state.loss_steps = state.loss_sum + result.loss.double(), state.loss_steps + 1
        self._watch.see(result.loss, state.step)
        self._rows[state.step] = result.window.batches
        logged = state.step % context.config.train.log_every == 0 or state.step in (1, self._total)
        if not (logged or context.place.reads_are_free):
            self._beat(state)
            return
        loss, norm = self._read(result, logged)
        context.timing.clock.settle()
        self._beat(state, **({"loss": loss} if logged else {}))
        if logged and self._log is not None:
            self._write(self._log, state, result, loss, norm)
        if self._bad.longest >= context.config.train.max_nonfinite_steps:
            raise TrainingDiverged(self._advice(state, result.learning_rate))

    def _read(self, result: StepResult, logged: bool) -> tuple[float, float | None]:
        """The loss (over replicas where it is logged) and the norm of the gradients, in one read of the device.

        A loss that is finite here and not on another rank counts as not finite: the sum is not.
        """
        loss = result.loss.detach().double().reshape(1)
        own = [self._watch.values]
        if isinstance(result.grad_norm, torch.Tensor):
            own.append(result.grad_norm.detach().to(loss.device).double().reshape(1))
        together = torch.cat(own)
        (value,), watched = self._context.place.read_with_sum(loss, together) if logged else ([0.0], [])
        if not logged:
            value, *watched = torch.cat([loss, together]).tolist()
        self._take(watched[:3], logged and not math.isfinite(value))
        return value, self._norm(result, watched[3:])

    def _take(self, watched: list[float], sum_is_bad: bool) -> None:
        """Keep what the watch said, and the rows at which a row of bad losses began."""
        step = max(self._rows)
        if sum_is_bad and not watched[0]:  # another rank's
            self._watch.see(torch.tensor(math.nan), step)
            watched = [1.0, max(1.0, watched[1]), float(step)]
        self._bad = self._watch.taken(watched)
        if self._bad.first_step in self._rows:
            self._bad_rows = [int(row) for batch in self._rows[self._bad.first_step] for row in batch.rows]
        self._rows.clear()

    @staticmethod
    def _norm(result: StepResult, read: list[float]) -> float | None:
        return read[0] if read else None if result.grad_norm is None else float(result.grad_norm)

    def check_end(self, state: LoopState) -> None:
        """After the last step, whose loss was summed over ranks: one that is not finite has made the weights worthless.

        Raises:
            TrainingDiverged: on every rank, also where only the weights are not finite.
        """
        context = self._context
        weights = parameter_checksum(context.engine, context.prepared.bare)
        if self._bad.in_a_row or not all(map(math.isfinite, weights)):
            raise TrainingDiverged(self._advice(state, context.config.optimizer.lr))

    def _beat(self, state: LoopState, **loss: float) -> None:
        heartbeat = self._context.output.heartbeat
        heartbeat.beat(phase="training", step=state.step, total=self._total, epoch=state.epoch, **loss)

    def _write(self, log: MetricsLog, state: LoopState, result: StepResult, loss: float, norm: float | None) -> None:
        context = self._context
        scaling = context.engine.loss_scaling() if context.config.precision.name == "fp16" else {}
        log.write(
            step=state.step,
            loss=loss,
            learning_rate=result.learning_rate,
            grad_norm=norm,
            seconds=result.took.seconds,
            epoch=state.epoch,
            elapsed_seconds=context.timing.elapsed(),
            **scaling,
        )

    def _advice(self, state: LoopState, learning_rate: float) -> str:
        config, first, rows = self._context.config, self._bad.first_step, self._bad_rows
        shown = ", ".join(map(str, rows[:16])) + (", …" if len(rows) > 16 else "")
        others = {"fp16": ", precision=bf16 or precision=fp32", "bf16": " or precision=fp32"}.get(
            config.precision.name, ""
        )
        if not self._bad.longest:
            return (
                f"the weights are not finite after the last step; try optimizer.lr={config.optimizer.lr / 10:g}{others}"
            )
        return (
            f"the loss was not finite for {self._bad.longest} steps in a row, up to step {state.step} "
            f"(learning rate {learning_rate:g}, precision {config.precision.name}); it began at step {first}, where "
            f"this rank had rows {shown} of the training split; "
            f"try optimizer.lr={config.optimizer.lr / 10:g}{others}"
        )
