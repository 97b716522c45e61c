"""Means and ratios with 95 % intervals, from the runs of one cell.

The unit that is counted is a run. Epochs of one run share its seed, its machine and its moment,
so they are averaged first and never counted as independent measurements.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T_QUANTILES = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
_NORMAL_QUANTILE = 1.959964


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
    """97.5 % quantile of Student's t for 1 or more degrees of freedom, which need not be whole.

    Between table entries it is interpolated in 1/df, which errs on the wide side. Above 30 it is the
    expansion in 1/n around the normal quantile z (Abramowitz & Stegun 26.7.5), right to five places there.
    """
    if degrees_of_freedom < 1:
        raise ValueError(f"degrees of freedom must be at least 1, not {degrees_of_freedom}")
    if degrees_of_freedom >= len(_T_QUANTILES):
        z, n = _NORMAL_QUANTILE, degrees_of_freedom
        first, second = z**3 + z, 5 * z**5 + 16 * z**3 + 3 * z
        third = 3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z
        return z + first / (4 * n) + second / (96 * n**2) + third / (384 * n**3)
    below = math.floor(degrees_of_freedom)
    share = (1 / below - 1 / degrees_of_freedom) / (1 / below - 1 / (below + 1))
    return _T_QUANTILES[below - 1] * (1 - share) + _T_QUANTILES[below] * share


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
