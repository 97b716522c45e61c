"""Read `system.jsonl`: what processors, memory and GPUs did during a run, as curves and in one line."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.memory.amounts import gib
from runner.report.metrics_log import json_lines
from runner.report.reading import mapping, number

SYSTEM_NAME = "system.jsonl"
GIB = 2**30


@dataclass(frozen=True)
class Moment:
    """One line of the log.

    Attributes:
        elapsed_seconds: since the command was typed.
        cpu_percent: of all cores together.
        gpu_percent: mean over the GPUs; None without one.
        watts: of all GPUs together; None where none tells.
    """

    elapsed_seconds: float
    cpu_percent: float | None
    host_memory_bytes: float | None
    gpu_percent: float | None
    watts: float | None
    gpus: int


def read_moments(folder: Path) -> list[Moment]:
    """The lines in order; [] without a file. What is cut off or damaged is skipped."""
    found = []
    for raw in json_lines(folder / SYSTEM_NAME):
        line = mapping(raw)
        elapsed = number(line.get("elapsed_seconds"))
        if elapsed is None:
            continue
        gpus = [mapping(gpu) for gpu in mapping(line.get("gpu")).values()]
        used = [value for gpu in gpus if (value := number(gpu.get("utilization_percent"))) is not None]
        watts = [value for gpu in gpus if (value := number(gpu.get("power_watts"))) is not None]
        found.append(
            Moment(
                elapsed,
                number(line.get("cpu_percent")),
                number(line.get("host_memory_bytes")),
                statistics.fmean(used) if used else None,
                sum(watts) if watts else None,
                len(gpus),
            )
        )
    return found


def energy_wh(moments: Sequence[Moment]) -> float | None:
    """Watt-hours of the GPUs by the trapezoidal rule over neighbouring lines; None where power is not known.

    A step backwards in time is the beginning of another attempt: between attempts nothing is counted.
    """
    known = [(moment.elapsed_seconds, moment.watts) for moment in moments if moment.watts is not None]
    pairs = [(before, after) for before, after in itertools.pairwise(known) if after[0] > before[0]]
    if not pairs:
        return None
    return sum((after[0] - before[0]) * (before[1] + after[1]) / 2 for before, after in pairs) / 3600


def machine_line(folder: Path) -> str | None:
    """The run's machine in one line, such as `CPU 61 % used, host memory at most 5.2 GiB; 2 GPUs 93 % used, 41 Wh`."""
    moments = read_moments(folder)
    cpu = [moment.cpu_percent for moment in moments if moment.cpu_percent is not None]
    memory = [moment.host_memory_bytes for moment in moments if moment.host_memory_bytes is not None]
    gpu = [moment.gpu_percent for moment in moments if moment.gpu_percent is not None]
    if not cpu:
        return None
    said = f"CPU {statistics.fmean(cpu):.0f} % used"
    said += f", host memory at most {gib(max(memory), 1)}" if memory else ""
    if gpu:
        count = max(moment.gpus for moment in moments)
        said += f"; {count} GPU{'s' if count > 1 else ''} {statistics.fmean(gpu):.0f} % used"
    energy = energy_wh(moments)
    return said + (f", {energy:.1f} Wh" if energy is not None else "")
