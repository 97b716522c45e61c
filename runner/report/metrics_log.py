"""Read `metrics.jsonl`: loss and learning rate over optimizer steps and over wall time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from runner.report.reading import integer, number

METRICS_NAME = "metrics.jsonl"


@dataclass(frozen=True)
class Point:
    """One logged optimizer step; `seconds` as logged."""

    step: int
    loss: float | None
    learning_rate: float | None
    seconds: float | None


def read_points(folder: Path) -> list[Point]:
    """Logged steps in order, each once; [] without a file.

    A line that is cut off is skipped. After a resume a step may be logged again: the later line counts.
    """
    try:
        lines = (folder / METRICS_NAME).read_bytes().splitlines()
    except OSError:
        return []
    points: dict[int, Point] = {}
    for line in lines:
        point = _point(line)
        if point is not None:
            points[point.step] = point
    return [points[step] for step in sorted(points)]


def _point(line: bytes) -> Point | None:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = integer(raw.get("step")) if isinstance(raw, dict) else None
    if step is None:
        return None
    return Point(step, number(raw.get("loss")), number(raw.get("learning_rate")), number(raw.get("seconds")))


def elapsed_seconds(points: list[Point]) -> list[float | None]:
    """Wall seconds since training began, for each point.

    `seconds` that never fall are elapsed time already. Otherwise they are the duration of a step, and
    the steps between two logged ones are taken to last as long as the later one.
    """
    seconds = [point.seconds for point in points]
    known = [value for value in seconds if value is not None]
    if len(known) < len(seconds) or all(a <= b for a, b in pairwise(known)):
        return seconds
    total, last_step, elapsed = 0.0, 0, []
    for point, duration in zip(points, known, strict=True):
        total += duration * (point.step - last_step)
        last_step = point.step
        elapsed.append(total)
    return list(elapsed)
