"""Learning-rate schedules: an object for each, with its formula and the keys it reads. Imports no torch.

Every schedule begins with a linear warm-up from 0 to the peak; said here is the factor on the peak after it. The
formulas are those of transformers' functions of the same names (`transformers.optimization`); tests compare them. One
difference: `wsd` warms up from 0 like all others, where transformers begins at the floor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

if TYPE_CHECKING:
    from runner.config.optimization import SchedulerConfig

LONG_TIMESCALE = 10_000  # optimizer steps, of inverse_sqrt without warm-up


class Schedule(ABC):
    """One shape.

    Attributes:
        keys: keys of the section `scheduler` that only some schedules read, those that this one does.
        needs_total: whether the learning rate of a step depends on the steps of the whole run.
        deepspeed_type: DeepSpeed's class with the same formula, if there is one.
    """

    name: ClassVar[str]
    keys: ClassVar[frozenset[str]] = frozenset()
    needs_total: ClassVar[bool] = True
    deepspeed_type: ClassVar[str | None] = None

    @abstractmethod
    def after_warmup(self, step: int, warmup: int, total: int, config: SchedulerConfig) -> float:
        """Factor on the peak learning rate.

        Args:
            step: optimizer step, from 0, at least `warmup`.
            warmup: optimizer steps of warm-up.
            total: optimizer steps of the run.
        """


class Constant(Schedule):
    """1."""

    name = "constant"
    needs_total = False
    deepspeed_type = "WarmupLR"

    @override
    def after_warmup(self, step: int, warmup: int, total: int, config: SchedulerConfig) -> float:
        """1."""
        return 1.0


class Linear(Schedule):
    """(total − step) / (total − warmup), DeepSpeed's WarmupDecayLR with `warmup_type: linear`, too."""

    name = "linear"
    deepspeed_type = "WarmupDecayLR"

    @override
    def after_warmup(self, step: int, warmup: int, total: int, config: SchedulerConfig) -> float:
        """To 0 at the last step."""
        return max(0.0, float(total - step) / float(max(1, total - warmup)))


class Cosine(Schedule):
    """(1 + cos(π · progress)) / 2. DeepSpeed's WarmupCosineLR is another curve."""

    name = "cosine"

    @override
    def after_warmup(self, step: int, warmup: int, total: int, config: SchedulerConfig) -> float:
        """Half a cosine, to 0."""
        return max(0.0, _half_cosine(_progress(step, warmup, total)))


class CosineWithMinLr(Schedule):
    """Half a cosine down to `min_lr_ratio` of the peak."""

    name = "cosine_with_min_lr"
    keys = frozenset({"min_lr_ratio"})

    @override
    def after_warmup(self, step: int, warmup: int, total: int, config: SchedulerConfig) -> float:
        """(1 + cos(π · progress)) / 2, scaled to end at the floor."""
        floor = config.min_lr_ratio
        return max(0.0, _half_cosine(_progress(step, warmup, total)) * (1 - floor) + floor)


class Polynomial(Schedule):
    """(1 − progress) ^ power, scaled to end at `min_lr_ratio` of the peak."""

    name = "polynomial"
    keys = frozenset({"min_lr_ratio", "power"})

    @override
    def after_warmup(self, step: int, warmup: int, total: int, config: SchedulerConfig) -> float:
        """Power 1 is linear."""
        floor = config.min_lr_ratio
        return float((1 - floor) * (1 - _progress(step, warmup, total)) ** config.power + floor)


class InverseSquareRoot(Schedule):
    """√(timescale / (step − warmup + timescale)), the timescale being the warm-up, or 10,000 steps without one."""

    name = "inverse_sqrt"
    needs_total = False

    @override
    def after_warmup(self, step: int, warmup: int, total: int, config: SchedulerConfig) -> float:
        """√(warmup / step) with a warm-up."""
        timescale = warmup or LONG_TIMESCALE
        return 1.0 / math.sqrt((step + timescale - warmup) / timescale)


class WarmupStableDecay(Schedule):
    """The peak until the last `decay_ratio` of the run, then down to `min_lr_ratio` of it (Hägele and others, "Scaling
    Laws and Compute-Optimal Training Beyond Fixed Training Durations", 2024, arXiv:2405.18392).
    """

    name = "wsd"
    keys = frozenset({"min_lr_ratio", "decay_ratio", "decay_shape"})

    @override
    def after_warmup(self, step: int, warmup: int, total: int, config: SchedulerConfig) -> float:
        """1, then the shape of the decay; a decay longer than what follows the warm-up is as long as that."""
        decay = min(round(config.decay_ratio * total), total - warmup)
        if step < total - decay:
            return 1.0
        progress = _progress(step, total - decay, total)
        left = {
            "linear": 1.0 - progress,
            "cosine": _half_cosine(progress),
            "1-sqrt": 1.0 - math.sqrt(progress),
        }[config.decay_shape]
        return max(0.0, left * (1.0 - config.min_lr_ratio) + config.min_lr_ratio)


def _progress(step: int, begin: int, end: int) -> float:
    """Part of the way from `begin` to `end`, 0 to 1."""
    return min(1.0, float(step - begin) / float(max(1, end - begin)))


def _half_cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Linear(), Constant(), Cosine(), CosineWithMinLr(), Polynomial(), InverseSquareRoot(), WarmupStableDecay(),
    )
}  # fmt: skip


def schedule_of(config: SchedulerConfig) -> Schedule:
    """The chosen schedule."""
    return SCHEDULES[config.name]


def reads(key: str) -> list[str]:
    """Schedules that read a key of the section `scheduler`."""
    return [schedule.name for schedule in SCHEDULES.values() if key in schedule.keys]
