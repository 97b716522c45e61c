"""Whether a machine changed while a comparison ran: the same cell's repeats against time.

A difference between methods means something only where the same method took the same time throughout.
The logarithm of each run's seconds, less its row's mean, is set against when the run started: against time
itself, and against a step at each moment between two runs. Ordinary least squares with one mean a row;
the p-values are doubled for the two kinds and multiplied by the number of steps tried (Bonferroni).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from runner.report.aggregation import Row
from runner.report.intervals import t_quantile
from runner.report.run_view import Run

_LEVEL = 0.05
_LEAST_CHANGE = math.log(1.05)  # a change of less decides no comparison
_MOST_STEPS = 40  # moments at which a step is tried


@dataclass(frozen=True)
class _Point:
    """One completed run: its row's number, seconds since the first one's start, logarithm of its seconds per epoch."""

    row: int
    at: float
    log_seconds: float


@dataclass(frozen=True)
class _Fit:
    """log seconds = row's mean + slope · regressor: `error` is the slope's, over `freedom` degrees of freedom."""

    slope: float
    error: float
    freedom: int
    variance: float
    spread: float  # sum of squares of the regressor within rows

    @property
    def p_value(self) -> float:
        """Two-sided, that the slope is 0."""
        return 0.0 if self.error == 0 else t_two_sided(abs(self.slope) / self.error, self.freedom)


def drift_sentence(rows: Sequence[Row]) -> str:
    """Why no verdict can be given on these rows, in plain words; '' where their repeats show no drift."""
    points = _points(rows)
    fits = _fits(points)
    if not fits:
        return ""
    p_value, change = min(fits)
    if p_value >= _LEVEL or abs(change) < _LEAST_CHANGE:
        return ""
    percent = 100 * (math.exp(abs(change)) - 1)
    return (
        f"The machine changed while these runs were made: repeats of the same cell took {percent:.0f} % "
        f"{'longer' if change > 0 else 'less time'} later on than at first, so no method is called faster than another."
        f"{_load_sentence(rows)}"
    )


def could_be_drift(baseline: Row, row: Row, rows: Sequence[Row]) -> bool:
    """Whether two rows that ran one after the other differ by no more than a drift within the table's rows explains.

    False where their runs are interleaved, or where too few repeats could tell.
    """
    points = _points(rows)
    before, after = (
        [point for point in points if point.row == index] for index in (_place(rows, baseline), _place(rows, row))
    )
    if not before or not after or not _apart(before, after):
        return False
    fit = _least_squares(points, lambda point: point.at)
    if fit is None or fit.freedom < 2:
        return False
    difference = _mean_log(before) - _mean_log(after)
    distance = statistics.fmean(point.at for point in before) - statistics.fmean(point.at for point in after)
    error = math.sqrt(fit.variance * (1 / len(before) + 1 / len(after) + distance**2 / fit.spread))
    return abs(difference - fit.slope * distance) <= t_quantile(fit.freedom) * error


def _place(rows: Sequence[Row], wanted: Row) -> int:
    return next(index for index, row in enumerate(rows) if row is wanted)


def _apart(first: Sequence[_Point], second: Sequence[_Point]) -> bool:
    """Whether all runs of one started before all of the other."""
    a, b = [point.at for point in first], [point.at for point in second]
    return max(a) < min(b) or max(b) < min(a)


def _mean_log(points: Sequence[_Point]) -> float:
    return statistics.fmean(point.log_seconds for point in points)


def _points(rows: Sequence[Row]) -> list[_Point]:
    """Completed runs with a time and a start, oldest first; of rows with repeats, others say nothing of drift."""
    found = []
    for index, row in enumerate(rows):
        for run in row.completed_runs if len(row.completed_runs) > 1 else ():
            seconds, started = run.train_seconds_per_epoch, started_at(run)
            if seconds and seconds > 0 and started is not None:
                found.append((started, index, math.log(seconds)))
    first = min((started for started, _, _ in found), default=0.0)
    return sorted((_Point(index, started - first, log) for started, index, log in found), key=lambda point: point.at)


def started_at(run: Run) -> float | None:
    """When the run started, in seconds since the epoch; None where the record does not say."""
    try:
        moment = datetime.fromisoformat(str(run.raw.get("started_at")))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _fits(points: Sequence[_Point]) -> list[tuple[float, float]]:
    """(corrected p-value, change of log seconds from the beginning to the end) of each way the times may have moved."""
    span = points[-1].at if points else 0.0
    if span <= 0:
        return []
    found = []
    linear = _least_squares(points, lambda point: point.at)
    if linear is not None:
        found.append((2 * linear.p_value, linear.slope * span))
    moments = sorted({point.at for point in points})[1:]
    moments = moments[:: -(-len(moments) // _MOST_STEPS)]
    steps = [fit for moment in moments if (fit := _least_squares(points, _step_at(moment))) is not None]
    found += [(2 * len(steps) * fit.p_value, fit.slope) for fit in steps]
    return found


def _step_at(moment: float) -> Callable[[_Point], float]:
    return lambda point: float(point.at >= moment)


def _least_squares(points: Sequence[_Point], regressor: Callable[[_Point], float]) -> _Fit | None:
    """One slope for all rows, each with a mean of its own; None where the regressor varies within no row."""
    x = _within_rows(points, [regressor(point) for point in points])
    y = _within_rows(points, [point.log_seconds for point in points])
    spread, total = sum(value * value for value in x), sum(value * value for value in y)
    freedom = len(points) - len({point.row for point in points}) - 1
    if freedom < 1 or spread <= 1e-9 or total <= 1e-18:
        return None
    product = sum(a * b for a, b in zip(x, y, strict=True))
    variance = max(0.0, total - product * product / spread) / freedom
    return _Fit(product / spread, math.sqrt(variance / spread), freedom, variance, spread)


def _within_rows(points: Sequence[_Point], values: Sequence[float]) -> list[float]:
    """Each value less the mean of its row."""
    by_row: dict[int, list[float]] = {}
    for point, value in zip(points, values, strict=True):
        by_row.setdefault(point.row, []).append(value)
    return [value - statistics.fmean(by_row[point.row]) for point, value in zip(points, values, strict=True)]


def t_two_sided(t: float, freedom: int) -> float:
    """P(|T| > t) of Student's t with a whole number of degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    theta = math.atan(t / math.sqrt(freedom))
    square = math.cos(theta) ** 2
    if freedom % 2:
        term, total = math.cos(theta), 0.0
        for index in range(1, freedom - 1, 2):
            total += term
            term *= square * (index + 1) / (index + 2)
        inside = (theta + math.sin(theta) * total) * 2 / math.pi
    else:
        term, total = 1.0, 0.0
        for index in range(1, freedom, 2):
            total += term
            term *= square * index / (index + 1)
        inside = math.sin(theta) * total
    return max(0.0, 1.0 - inside)


def _load_sentence(rows: Sequence[Row]) -> str:
    """What the records say of others' work on the machine, first run against last."""
    runs = sorted(
        (run for row in rows for run in row.completed_runs if started_at(run) is not None),
        key=lambda run: started_at(run) or 0.0,
    )
    known = [value for run in runs if (value := run.others_busy_cores) is not None]
    if len(known) < 2:
        return ""
    half = len(known) // 2
    early, late = statistics.fmean(known[:half]), statistics.fmean(known[-half:])
    return f" Other processes kept {early:.1f} cores busy in the earlier half of the runs and {late:.1f} in the later."
