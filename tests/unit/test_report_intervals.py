"""Intervals and ratios against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from runner.report.intervals import Estimate, estimate, speed_up, t_quantile


def test_t_quantiles_agree_with_published_tables() -> None:
    assert t_quantile(1) == pytest.approx(12.7062, abs=1e-4)
    assert t_quantile(2) == pytest.approx(4.3027, abs=1e-4)
    assert t_quantile(10) == pytest.approx(2.2281, abs=1e-4)
    assert t_quantile(30) == pytest.approx(2.0423, abs=1e-4)
    assert t_quantile(60) == pytest.approx(2.0003, abs=1e-4)
    assert t_quantile(1e9) == pytest.approx(1.95996, abs=1e-5)
    assert 2.7764 < t_quantile(3.5) < (2.7764 + 3.1824) / 2  # between 4 and 3 degrees of freedom; the curve is convex
    with pytest.raises(ValueError, match="at least 1"):
        t_quantile(0.5)


def test_fractional_quantiles_are_never_too_small() -> None:
    stats = pytest.importorskip("scipy.stats")
    for tenths in range(10, 400, 3):
        exact = float(stats.t.ppf(0.975, tenths / 10))
        assert exact - 1e-4 < t_quantile(tenths / 10) < exact * 1.2


def test_mean_with_interval_by_hand() -> None:
    # 10, 12, 14: mean 12, s = 2, t(2) = 4.3027; 4.3027 · 2 / √3 = 4.9683
    found = estimate([10.0, 12.0, 14.0])
    assert found is not None
    assert (found.mean, found.count) == (12.0, 3)
    assert found.half_width == pytest.approx(4.9683, abs=1e-4)
    assert estimate([7.0]) == Estimate(7.0, None, 1)
    assert estimate([]) is None


def test_one_run_on_a_side_gives_a_ratio_without_interval() -> None:
    found = speed_up([12.0], [8.0])
    assert found is not None
    assert found.value == pytest.approx(1.5)
    assert (found.low, found.high, found.distinguishable) == (None, None, False)
    assert speed_up([], [8.0]) is None
    assert speed_up([12.0], [0.0]) is None


def test_ratio_with_interval_by_hand() -> None:
    # logs: ±0.01 around ln 20 and ln 10: both variances 2e-4 / 2 runs, so the standard error is
    # √(1e-4 + 1e-4) = 0.0141421 with Welch's df = 2, and t(2) · 0.0141421 = 0.0608494.
    before = [20 * math.exp(0.01), 20 * math.exp(-0.01)]
    after = [10 * math.exp(0.01), 10 * math.exp(-0.01)]
    found = speed_up(before, after)
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0 * math.exp(-0.0608494), rel=1e-5)
    assert found.high == pytest.approx(2.0 * math.exp(0.0608494), rel=1e-5)
    assert found.distinguishable


def test_an_interval_that_holds_one_is_indistinguishable() -> None:
    found = speed_up([10.0, 12.0, 11.0], [10.5, 11.5, 10.0])
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1.0 < found.high
    assert not found.distinguishable
