"""Read `metrics.jsonl`: loss and learning rate over optimizer steps and over wall time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.regular_files import read_regular
from runner.report.reading import integer, number

METRICS_NAME = "metrics.jsonl"


@dataclass(frozen=True)
class Point:
    """One logged optimizer step: `seconds` it took, `elapsed_seconds` since the start of the command."""

    step: int
    loss: float | None
    learning_rate: float | None
    seconds: float | None
    elapsed_seconds: float | None


def read_points(folder: Path) -> list[Point]:
    """Logged steps in order, each once; [] without a file.

    A line that is cut off is skipped. After a resume a step may be logged again: the later line counts.
    """
    points = {point.step: point for point in map(_point, json_lines(folder / METRICS_NAME)) if point is not None}
    return [points[step] for step in sorted(points)]


def learning_rates(folder: Path) -> dict[int, float]:
    """The learning rate of each logged optimizer step; {} without a file."""
    found: dict[int, float] = {}
    for raw in json_lines(folder / METRICS_NAME):
        if type(raw) is not dict:
            continue
        step, rate = raw.get("step"), number(raw.get("learning_rate"))
        step = step if type(step) is int else integer(step)
        if step is not None and rate is not None:
            found[step] = rate
    return found


def json_lines(path: Path) -> list[Any]:
    """The values of a JSON Lines file; [] where it cannot be read, lines that are cut off or damaged are skipped."""
    try:
        return _parsed(read_regular(path).splitlines())
    except OSError:
        return []


def _parsed(lines: Sequence[bytes]) -> list[Any]:
    """The lines' JSON values: in one go where all are whole, else line by line without the broken ones."""
    try:
        return list(json.loads(b"[" + b",".join(lines) + b"]"))
    except (ValueError, RecursionError):
        return [value for line in lines if (value := _parsed_line(line)) is not None]


def _parsed_line(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _point(raw: object) -> Point | None:
    line = raw if isinstance(raw, dict) else {}
    step = integer(line.get("step"))
    if step is None:
        return None
    loss, rate = number(line.get("loss")), number(line.get("learning_rate"))
    return Point(step, loss, rate, number(line.get("seconds")), number(line.get("elapsed_seconds")))


def elapsed_seconds(points: list[Point]) -> list[float | None]:
    """Wall seconds at each point: since the start of the command, as logged.

    Logs without `elapsed_seconds` get the sum of step times instead, where the steps between two logged
    ones are taken to last as long as the later one.
    """
    if any(point.elapsed_seconds is not None for point in points):
        return [point.elapsed_seconds for point in points]
    total, last_step = 0.0, 0
    elapsed: list[float | None] = []
    for point in points:
        total += (point.seconds or 0.0) * (point.step - last_step)
        last_step = point.step
        elapsed.append(total)
    return elapsed
