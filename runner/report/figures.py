"""What the page draws, as plain values: bars, stacked phases, curves and configuration differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runner.report.aggregation import Row, compared_config, differing_keys, value_text
from runner.report.columns import bytes_text, seconds_text, status_text
from runner.report.metrics_log import Point, elapsed_seconds, read_points
from runner.report.reading import mapping, number, text
from runner.report.tables import largest_batch

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
    """Loss and learning rate of each row's first run, thinned to at most 800 points; rows without a
    log are left out.
    """
    found = []
    for row in rows[:MOST_CURVES]:
        points = read_points(row.first.folder)
        if points:
            found.append(_curve(row, points, style_of[row.label]))
    return found


def _curve(row: Row, points: Sequence[Point], style: Style) -> dict[str, Any]:
    timed = list(zip(points, elapsed_seconds(list(points)), strict=True))
    every = -(-len(timed) // _MOST_POINTS)
    kept = timed[::every]
    if kept[-1] is not timed[-1]:
        kept.append(timed[-1])
    return {
        "label": row.label,
        "colour": style.colour,
        "dash": style.dash,
        "step": [point.step for point, _ in kept],
        "seconds": [seconds for _, seconds in kept],
        "loss": [point.loss for point, _ in kept],
        "rate": [point.learning_rate for point, _ in kept],
    }


def configuration_differences(rows: Sequence[Row]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """(key, [(value, labels of the first few rows that have it)]) for every key in which the rows differ."""
    known = [(row.label, compared_config(row.first)) for row in rows if row.first.raw.get("config")]
    found = []
    for key in differing_keys([config for _, config in known]):
        holders: dict[str, list[str]] = {}
        for label, config in known:
            holders.setdefault(value_text(config[key]) if key in config else "not set", []).append(label)
        found.append((key, [(value, first_few(labels)) for value, labels in holders.items()]))
    return found
