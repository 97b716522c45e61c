"""The best evaluation of a run so far, and whether training ends early for want of a better one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from runner.config.schema import RunConfig


@dataclass
class BestSoFar:
    """Saved with checkpoints. All ranks learn the same metrics, so it is the same on every rank.

    Attributes:
        value: of the judging metric (`recipe.metric_for_best`); None before the first that is finite.
        step: optimizer steps done when it was found.
        epoch: passes over the training split by then.
        reference: what a later value must beat by more than `train.early_stopping_min_delta` to count as better.
        waited: evaluations in a row that did not.
    """

    value: float | None = None
    step: int = 0
    epoch: float = 0.0
    reference: float | None = None
    waited: int = 0

    def see(self, config: RunConfig, value: float | None, step: int, epoch: float) -> bool:
        """Take in an evaluation; returns whether it is the best so far. A value that is not finite never is."""
        greater = config.recipe.greater_is_better
        finite = value is not None and math.isfinite(value)
        if finite and _gain(value, self.reference, greater) > config.train.early_stopping_min_delta:
            self.reference, self.waited = value, 0
        else:
            self.waited += 1
        if not finite or _gain(value, self.value, greater) <= 0.0:
            return False
        self.value, self.step, self.epoch = value, step, epoch
        return True

    def ends_training(self, config: RunConfig) -> bool:
        """Whether `train.early_stopping_patience` is used up."""
        patience = config.train.early_stopping_patience
        return patience is not None and self.waited >= patience

    def for_record(self, config: RunConfig) -> dict[str, Any] | None:
        """The record's `best`; None where there is none."""
        if self.value is None:
            return None
        return {"epoch": self.epoch, "metric": config.recipe.metric_for_best, "value": self.value, "step": self.step}

    def early_stop(self, config: RunConfig, step: int, epoch: float) -> tuple[dict[str, Any], str]:
        """The record's `early_stopping`, and a sentence that says the same."""
        train, metric = config.train, config.recipe.metric_for_best
        facts = {
            "step": step,
            "epoch": epoch,
            "metric": metric,
            "waited": self.waited,
            "patience": train.early_stopping_patience,
            "min_delta": train.early_stopping_min_delta,
        }
        by = f" by more than {train.early_stopping_min_delta:g}" if train.early_stopping_min_delta else ""
        best = f"; its best is {self.value:.4f} at step {self.step}" if self.value is not None else ""
        return facts, (
            f"training ended early after step {step} (epoch {epoch:g} of {train.epochs}): {metric} has not become "
            f"better{by} in {self.waited} evaluations in a row{best}"
        )


def _gain(value: float | None, before: float | None, greater: bool) -> float:
    """How much better a value is; infinite where there was none."""
    assert value is not None
    if before is None:
        return math.inf
    return value - before if greater else before - value
