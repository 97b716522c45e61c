"""What the page draws, as plain values: bars, stacked phases, curves and configuration differences."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runner.report.aggregation import Row, compared_config, differing_keys, value_text
from runner.report.columns import bytes_text, seconds_text, status_text
from runner.report.machine import read_moments
from runner.report.metrics_log import Point, elapsed_seconds, read_points
from runner.report.reading import dig, integers, mapping, number, numbers, sequence, text
from runner.report.run_view import Run
from runner.report.tables import largest_batch, natural_order

MOST_CURVES = 16
MOST_BARS = 24
_MOST_NAMED = 8
_MOST_POINTS = 800
COLOURS = 7
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


@dataclass(frozen=True)
class Style:
    """How a row looks everywhere on the page: colour number of its method, dash number within the method."""

    colour: int
    dash: str


@dataclass(frozen=True)
class Bar:
    """One bar; `share` and the interval's ends are fractions of the longest bar's scale."""

    label: str
    value: str
    share: float
    colour: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Bars:
    """A bar chart and the rows that are left out of it, with why."""

    bars: tuple[Bar, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Segment:
    """One phase of one run; `share` is a fraction of the longest run."""

    name: str
    seconds: float
    share: float
    colour: int


def styles(rows: Sequence[Row]) -> dict[str, Style]:
    """A style per row label: one colour a method, and another dash for each further row of the method."""
    colours: dict[str, int] = {}
    members: dict[str, int] = {}
    found = {}
    for row in rows:
        colour = colours.setdefault(row.method, len(colours) % COLOURS)
        place = members[row.method] = members.get(row.method, -1) + 1
        found[row.label] = Style(colour, _DASHES[place % len(_DASHES)])
    return found


def train_time_bars(rows: Sequence[Row], colour_of: Callable[[Row], int]) -> Bars:
    """Train seconds per epoch of completed rows, with 95 % intervals."""
    fit = [row for row in rows if row.completed_runs and row.train_seconds]
    kept = fit[:MOST_BARS]
    spans = [(row, row.train_seconds.mean, row.train_seconds.half_width or 0.0) for row in kept if row.train_seconds]
    scale = max((mean + half for _, mean, half in spans), default=0.0) or 1.0
    bars = tuple(
        Bar(
            row.label,
            f"{seconds_text(row.train_seconds)} s",
            mean / scale,
            colour_of(row),
            *_whisker(mean, half, scale),
        )
        for row, mean, half in spans
    )
    return Bars(bars, _left_out(rows, fit))


def _whisker(mean: float, half: float, scale: float) -> tuple[float | None, float | None]:
    return (max(0.0, mean - half) / scale, (mean + half) / scale) if half else (None, None)


def largest_batch_bars(rows: Sequence[Row], colour_of: Callable[[Row], int]) -> Bars:
    """Largest micro batch (rows per device) of completed rows."""
    fit = [row for row in rows if row.completed_runs and largest_batch(row)]
    kept = fit[:MOST_BARS]
    scale = max((largest_batch(row) or 0 for row in kept), default=0) or 1
    bars = tuple(
        Bar(row.label, str(largest_batch(row)), (largest_batch(row) or 0) / scale, colour_of(row)) for row in kept
    )
    return Bars(bars, _left_out(rows, fit))


def _left_out(rows: Sequence[Row], fit: Sequence[Row]) -> tuple[str, ...]:
    """Rows that have nothing to draw, with why, and how many more there would have been to draw."""
    drawn = {row.label for row in fit}
    named = [f"{row.label} ({status_text(row)})" for row in rows if row.label not in drawn]
    more = [f"{len(fit) - MOST_BARS} further rows"] if len(fit) > MOST_BARS else []
    return (*first_few(named), *more)


def first_few(items: Sequence[str]) -> list[str]:
    """At most eight items, and how many more there are."""
    return [*items[:_MOST_NAMED], *([f"{len(items) - _MOST_NAMED} more"] if len(items) > _MOST_NAMED else [])]


def memory_pairs(rows: Sequence[Row], colour_of: Callable[[Row], int]) -> list[tuple[str, Bar, Bar, str]]:
    """(label, predicted, measured, how they compare) of completed rows that have both; bytes of the largest rank."""
    known = []
    for row in rows:
        predicted, measured = row.first.predicted_memory_bytes, row.peak_memory_bytes
        if row.completed_runs and predicted and measured:
            known.append((row, predicted, measured))
    scale = max((max(predicted, measured) for _, predicted, measured in known), default=1)
    return [
        (
            row.label,
            Bar("predicted", bytes_text(predicted), predicted / scale, colour_of(row)),
            Bar("measured", bytes_text(measured), measured / scale, colour_of(row)),
            _compared(predicted, measured),
        )
        for row, predicted, measured in known
    ]


def _compared(predicted: int, measured: int) -> str:
    """How far the prediction was off, in percent of what was measured."""
    percent = 100 * (predicted / measured - 1)
    return (
        f"predicted {abs(percent):.0f} % too {'much' if percent > 0 else 'little'}"
        if abs(percent) >= 0.5
        else "predicted within 0.5 %"
    )


def phase_stacks(rows: Sequence[Row]) -> list[tuple[str, float, list[Segment]]]:
    """(label, wall seconds, segments) of completed rows; what no phase accounts for is a segment of its own."""
    stacks = []
    for row in rows:
        phases = _phases(row)
        if row.completed_runs and phases:
            stacks.append((row.label, phases))
    names = list(dict.fromkeys(name for _, phases in stacks for name in phases))
    longest = max((sum(phases.values()) for _, phases in stacks), default=1.0) or 1.0
    return [
        (
            label,
            sum(phases.values()),
            [Segment(name, seconds, seconds / longest, names.index(name)) for name, seconds in phases.items()],
        )
        for label, phases in stacks
    ]


def _phases(row: Row) -> dict[str, float]:
    raw = row.first.raw
    known = {text(str(name)): number(value) for name, value in mapping(raw.get("phases")).items()}
    phases = {name: value for name, value in known.items() if value is not None and value > 0}
    rest = (number(raw.get("wall_seconds")) or 0.0) - sum(phases.values())
    if phases and rest > 0:
        phases["not accounted for"] = rest
    return phases


def curves(rows: Sequence[Row], style_of: dict[str, Style]) -> list[dict[str, Any]]:
    """Loss, learning rate and validation metric of each row, mean over its repeats; rows without a log are left out."""
    found = []
    for row in rows[:MOST_CURVES]:
        logs = [log for run in row.completed_runs or row.runs[:1] if (log := read_points(run.folder))]
        if logs:
            found.append(_curve(row, logs, style_of[row.label]))
    for curve, width in zip(found, _widths(found), strict=True):
        curve["width"] = width
    return found


def _curve(row: Row, logs: Sequence[list[Point]], style: Style) -> dict[str, Any]:
    """Thinned to at most 800 points; `low` and `high` are the smallest and largest of the repeats at each step."""
    losses = [{point.step: point.loss for point in log if point.loss is not None} for log in logs]
    timed = dict(zip((point.step for point in logs[0]), elapsed_seconds(list(logs[0])), strict=True))
    kept = _thinned([point for point in logs[0] if all(point.step in known for known in losses[1:])])
    values = [[known[point.step] for known in losses if point.step in known] for point in kept]
    epochs, metric, low, high = _validation(row)
    return {
        "label": row.label,
        "colour": style.colour,
        "dash": style.dash,
        "step": [point.step for point in kept],
        "seconds": [timed[point.step] for point in kept],
        "loss": [statistics.fmean(found) if found else None for found in values],
        "low": [min(found, default=None) for found in values] if len(logs) > 1 else [],
        "high": [max(found, default=None) for found in values] if len(logs) > 1 else [],
        "rate": [point.learning_rate for point in kept],
        "epoch": epochs,
        "metric": metric,
        "metric_low": low,
        "metric_high": high,
        **_machine(row),
    }


def _machine(row: Row) -> dict[str, list[float | None]]:
    """Processors and GPUs over wall time, of the row's first run; empty lists without a log of them."""
    moments = read_moments(row.first.folder)
    kept = moments[:: -(-len(moments) // _MOST_POINTS) or 1]
    used = any(moment.gpu_percent is not None for moment in kept)
    return {
        "machine_seconds": [moment.elapsed_seconds for moment in kept],
        "cpu": [moment.cpu_percent for moment in kept],
        "gpu_seconds": [moment.elapsed_seconds for moment in kept] if used else [],
        "gpu": [moment.gpu_percent for moment in kept] if used else [],
    }


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most 800 of the points, the last one among them."""
    kept = list(points[:: -(-len(points) // _MOST_POINTS) or 1])
    return kept if not points or kept[-1] is points[-1] else [*kept, points[-1]]


def _validation(row: Row) -> tuple[list[float], list[float], list[float], list[float]]:
    """Epochs, and at each the mean, smallest and largest value of the judging metric over the row's repeats."""
    name, runs = judging_metric(row), row.completed_runs or row.runs[:1]
    by_epoch: dict[float, list[float]] = {}
    for epoch, metrics in (point for run in runs for point in _evaluations(run)):
        if epoch is not None and name in metrics:
            by_epoch.setdefault(epoch, []).append(metrics[name])
    epochs = sorted(by_epoch)
    means = [statistics.fmean(by_epoch[epoch]) for epoch in epochs]
    if len(runs) < 2:
        return epochs, means, [], []
    return epochs, means, [min(by_epoch[epoch]) for epoch in epochs], [max(by_epoch[epoch]) for epoch in epochs]


def _evaluations(run: Run) -> list[tuple[float | None, dict[str, float]]]:
    """(passes over the training split, metrics) of every evaluation, also those inside epochs."""
    listed = [mapping(item) for item in sequence(run.raw.get("validations"))]
    if listed:
        return [(number(item.get("epoch")), numbers(item.get("metrics"))) for item in listed]
    return [(epoch.epoch, epoch.metrics) for epoch in run.epochs]


def judging_metric(row: Row) -> str:
    """Name of the metric that judges the recipe; '' where the record does not say."""
    return text(dig(row.first.raw, "config.recipe.metric_for_best"))


def _widths(found: Sequence[dict[str, Any]]) -> list[float]:
    """Line widths: of curves that coincide each is narrower than the one below it, so that all of them are seen."""
    groups: list[list[int]] = []
    for index, curve in enumerate(found):
        group = next((group for group in groups if _coincide(found[group[0]], curve)), None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    widths = [2.0] * len(found)
    for group in groups:
        for place, index in enumerate(group):
            widths[index] = 2.0 + min(3.0, 12.0 / len(group)) * (len(group) - 1 - place)
    return widths


def _coincide(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two loss curves lie within 1 % of their range of each other wherever both were logged."""
    known = {step: loss for step, loss in zip(first["step"], first["loss"], strict=True) if loss is not None}
    shared = [
        (known[step], loss)
        for step, loss in zip(second["step"], second["loss"], strict=True)
        if step in known and loss is not None
    ]
    values = [value for pair in shared for value in pair]
    return bool(shared) and max(abs(a - b) for a, b in shared) <= 0.01 * ((max(values) - min(values)) or 1.0)


def coinciding(found: Sequence[dict[str, Any]]) -> bool:
    """Whether any curve is drawn wider than the others because one lies on it."""
    return any(curve["width"] > 2 for curve in found)


def configuration_differences(rows: Sequence[Row]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """(key, [(value, labels of the first few rows that have it)]) for every key in which the rows differ."""
    known = [(row.label, compared_config(row.first)) for row in rows if row.first.raw.get("config")]
    found = []
    for key in differing_keys([config for _, config in known]):
        holders: dict[str, list[str]] = {}
        for label, config in known:
            holders.setdefault(value_text(config[key]) if key in config else "not set", []).append(label)
        ordered = sorted(holders.items(), key=lambda item: natural_order(item[0]))
        found.append((key, [(value, first_few(labels)) for value, labels in ordered]))
    return found


@dataclass(frozen=True)
class Confusion:
    """Counts of a classification: `counts[true][predicted]`, and (class, precision, recall, F1, rows) of each class."""

    label: str
    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    scores: tuple[tuple[str, str, str, str, int], ...]


def confusion(row: Row) -> Confusion | None:
    """What the record's `confusion` says of the row's first run; None where there is none, or it is no square of
    counts.
    """
    raw = mapping(row.first.raw.get("confusion"))
    names = tuple(text(str(name)) for name in sequence(raw.get("names")))
    counts = tuple(integers(line) for line in sequence(raw.get("counts")))
    if not names or len(counts) != len(names) or any(len(line) != len(names) for line in counts):
        return None
    scores = []
    for index, name in enumerate(names):
        right, true = counts[index][index], sum(counts[index])
        predicted = sum(line[index] for line in counts)
        # F1 = 2 TP / (2 TP + FP + FN), which is harmonic in precision and recall.
        shares = (_share(right, predicted), _share(right, true), _share(2 * right, true + predicted))
        scores.append((name, *shares, true))
    return Confusion(row.label, names, counts, tuple(scores))


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "–"
