"""Means and ratios with 95 % intervals, from the runs of one cell.

The unit that is counted is a run. Epochs of one run share its seed, its machine and its moment,
so they are averaged first and never counted as independent measurements.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A mean over `count` runs; `half_width` is half of the 95 % interval, `deviation` the sample's standard deviation;
    None for a single run."""

    mean: float
    half_width: float | None
    count: int
    deviation: float | None = None


@dataclass(frozen=True)
class Ratio:
    """How many times faster: baseline seconds / seconds; `low` and `high` bound the 95 % interval."""

    value: float
    low: float | None
    high: float | None

    @property
    def distinguishable(self) -> bool:
        """Whether there is an interval and it leaves out 1."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high


def t_quantile(degrees_of_freedom: float) -> float:
    """97.5 % quantile of Student's t for 1 or more degrees of freedom, which need not be whole."""
    if degrees_of_freedom < 1:
        raise ValueError(f"degrees of freedom must be at least 1, not {degrees_of_freedom}")
    from scipy.special import stdtrit  # not scipy.stats, which takes a second to import

    return float(stdtrit(degrees_of_freedom, 0.975))


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and t interval, t·s/√n with n − 1 degrees of freedom; None without values."""
    if not values:
        return None
    if len(values) == 1:
        return Estimate(values[0], None, 1)
    mean, deviation = statistics.mean(values), statistics.stdev(values)
    error = deviation / math.sqrt(len(values))
    return Estimate(mean, t_quantile(len(values) - 1) * error, len(values), deviation)


def speed_up(baseline_seconds: Sequence[float], seconds: Sequence[float]) -> Ratio | None:
    """Ratio of baseline time to time, above 1 when `seconds` are the faster ones; None without values.

    With two or more runs on both sides: the ratio of geometric means, with Welch's interval for the
    difference of mean logarithms, carried back by exp. Otherwise the plain ratio without an interval.
    """
    if not baseline_seconds or not seconds or min(*baseline_seconds, *seconds, math.inf) <= 0:
        return None
    before = [math.log(value) for value in baseline_seconds]
    after = [math.log(value) for value in seconds]
    difference = statistics.fmean(before) - statistics.fmean(after)
    if min(len(before), len(after)) < 2:
        return Ratio(math.exp(difference), None, None)
    half_width = _welch_half_width(before, after)
    return Ratio(math.exp(difference), math.exp(difference - half_width), math.exp(difference + half_width))


def _welch_half_width(first: Sequence[float], second: Sequence[float]) -> float:
    """Half of the 95 % interval of a difference of means, variances not assumed equal (Welch 1947)."""
    a, b = statistics.variance(first) / len(first), statistics.variance(second) / len(second)
    if a + b == 0:
        return 0.0
    degrees_of_freedom = (a + b) ** 2 / (a * a / (len(first) - 1) + b * b / (len(second) - 1))
    return t_quantile(max(1.0, degrees_of_freedom)) * math.sqrt(a + b)
