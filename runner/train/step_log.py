"""What is said of optimizer steps: the heartbeat, `metrics.jsonl`, and a watch for losses that are not finite."""

from __future__ import annotations

import math

from runner.train.context import RankContext
from runner.train.loop import LoopState, StepResult
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
        self._first_bad: tuple[int, list[int]] = (0, [])  # step and rows of this rank where the loss became non-finite

    def step(self, state: LoopState, result: StepResult) -> None:
        """Sum the loss; where it is logged, over ranks; watch for losses that are not finite; tell the outside.

        On a GPU nothing is read from the device but at logged steps: reading waits for it.

        Raises:
            TrainingDiverged: after `train.max_nonfinite_steps` losses in a row that are not finite.
        """
        context = self._context
        state.loss_sum, state.loss_steps = state.loss_sum + result.loss.double(), state.loss_steps + 1
        logged = state.step % context.config.train.log_every == 0 or state.step in (1, self._total)
        if not (logged or context.place.device.type == "cpu"):
            self._beat(state)
            return
        own = float(result.loss.item())
        loss = context.place.sum_over_replicas([own])[0] if logged else own
        state.nonfinite = 0 if math.isfinite(loss) else state.nonfinite + 1
        if state.nonfinite == 1:
            self._first_bad = (state.step, [int(row) for batch in result.window.batches for row in batch.rows])
        self._beat(state, **({"loss": loss} if logged else {}))
        if logged and self._log is not None:
            self._write(self._log, state, result, loss)
        if state.nonfinite >= context.config.train.max_nonfinite_steps:
            raise TrainingDiverged(self._advice(state, result.learning_rate))

    def check_end(self, state: LoopState) -> None:
        """After the last step, whose loss was summed over ranks: one that is not finite has made the weights worthless.

        Raises:
            TrainingDiverged: on every rank, also where only the weights are not finite.
        """
        context = self._context
        weights = parameter_checksum(context.engine, context.prepared.bare)
        if state.nonfinite or not all(map(math.isfinite, weights)):
            raise TrainingDiverged(self._advice(state, context.config.optimizer.lr))

    def _beat(self, state: LoopState, **loss: float) -> None:
        heartbeat = self._context.output.heartbeat
        heartbeat.beat(phase="training", step=state.step, total=self._total, epoch=state.epoch, **loss)

    def _write(self, log: MetricsLog, state: LoopState, result: StepResult, loss: float) -> None:
        context = self._context
        scaling = context.engine.loss_scaling() if context.config.precision.name == "fp16" else {}
        log.write(
            step=state.step,
            loss=loss,
            learning_rate=result.learning_rate,
            grad_norm=float(result.grad_norm) if result.grad_norm is not None else None,
            seconds=result.seconds,
            epoch=state.epoch,
            elapsed_seconds=context.timing.elapsed(),
            **scaling,
        )

    def _advice(self, state: LoopState, learning_rate: float) -> str:
        config, (first, rows) = self._context.config, self._first_bad
        shown = ", ".join(map(str, rows[:16])) + (", …" if len(rows) > 16 else "")
        others = {"fp16": ", precision=bf16 or precision=fp32", "bf16": " or precision=fp32"}.get(
            config.precision.name, ""
        )
        if not state.nonfinite:
            return (
                f"the weights are not finite after the last step; try optimizer.lr={config.optimizer.lr / 10:g}{others}"
            )
        return (
            f"the loss was not finite for {state.nonfinite} steps in a row, up to step {state.step} "
            f"(learning rate {learning_rate:g}, precision {config.precision.name}); it began at step {first}, where "
            f"this rank had rows {shown} of the training split; "
            f"try optimizer.lr={config.optimizer.lr / 10:g}{others}"
        )
