"""Which checkpoints stay: the newest ones by step number, and the best by the recipe's metric."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.checkpoint.folders import Checkpoint, checkpoints, remove


@dataclass(frozen=True)
class Policy:
    """How much is kept.

    Attributes:
        keep_last: steps, counted from the newest.
        keep_best: whether the best by metric stays as well.
        greater_is_better: of the metric.
    """

    keep_last: int
    keep_best: bool
    greater_is_better: bool


def to_remove(run_dir: Path, policy: Policy) -> list[Checkpoint]:
    """Whole checkpoints that the policy does not keep. Damaged ones are neither counted nor touched."""
    whole = [item for item in checkpoints(run_dir) if item.damage(checksums=False) is None]
    steps = sorted({item.step for item in whole}, reverse=True)[: policy.keep_last]
    kept = {next(item for item in whole if item.step == step) for step in steps}
    best_one = best(run_dir, policy.greater_is_better) if policy.keep_best else None
    return [item for item in whole if item not in kept and item != best_one]


def best(run_dir: Path, greater_is_better: bool) -> Checkpoint | None:
    """The whole one with the best metric, of equals the earliest; None where none knows its metric."""
    whole = [item for item in reversed(checkpoints(run_dir)) if item.damage(checksums=False) is None]
    scored = [(item.manifest.metric, item) for item in whole]
    known = [(metric, item) for metric, item in scored if metric is not None]
    sign = 1 if greater_is_better else -1
    return max(known, key=lambda pair: sign * pair[0])[1] if known else None


def apply(run_dir: Path, policy: Policy) -> list[str]:
    """Delete what the policy does not keep; returns the names. Called when a newer one is complete."""
    removed = []
    for item in to_remove(run_dir, policy):
        remove(item)
        removed.append(item.path.name)
    return removed
