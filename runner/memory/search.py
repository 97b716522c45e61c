"""Around a workload: the other ways to run it, and the largest micro batch each of them fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from runner.engines import every_engine
from runner.memory.amounts import gib
from runner.memory.estimate import MemoryEstimate, estimate
from runner.memory.items import CATEGORIES, MOMENTS
from runner.memory.workload import Workload

LARGEST_ROWS = 2**20
GIB = 2**30


@dataclass(frozen=True)
class Fit:
    """Largest micro batch that fits (0: not even one row), and what stops the next one."""

    rows: int
    reason: str


@dataclass(frozen=True)
class Alternative:
    """One way to run the workload. `fit` is None when no device memory was given."""

    name: str
    estimate: MemoryEstimate
    fit: Fit | None
    chosen: bool


def largest_micro_batch(workload: Workload, device_bytes: int) -> int:
    """Rows of the largest micro batch whose estimate is at most `device_bytes`; 0 when one row does not fit."""
    return fit(workload, device_bytes).rows


def fit(workload: Workload, device_bytes: int) -> Fit:
    """The largest micro batch for a device of `device_bytes`, with the reason why no more fits."""

    def needs(rows: int) -> int:
        return estimate(workload.with_batch(rows)).device_bytes_per_rank

    if needs(1) > device_bytes:
        return Fit(0, _too_small(estimate(workload.with_batch(1)), device_bytes))
    low, high = 1, 2
    while high <= LARGEST_ROWS and needs(high) <= device_bytes:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needs(middle) <= device_bytes else (low, middle)
    over = estimate(workload.with_batch(low + 1))
    return Fit(low, f"{low + 1} rows need {gib(over.device_bytes_per_rank)}, most of it {_heaviest(over)}")


def _too_small(one: MemoryEstimate, device_bytes: int) -> str:
    need, have = gib(one.device_bytes_per_rank), gib(device_bytes)
    moment = MOMENTS[one.peak_moment].split(":")[0]
    return f"one row needs {need} of {have} ({moment}), most of it {_heaviest(one)}"


def _heaviest(found: MemoryEstimate) -> str:
    sizes = {label: found.category_at(name, found.peak_moment) for name, label in CATEGORIES.items()}
    label = max(sizes, key=lambda key: sizes[key])
    return f"{label} ({gib(sizes[label])})"


def alternatives(workload: Workload, device_bytes: int | None = None, splits: bool = False) -> list[Alternative]:
    """Every engine's ways to lay out training state, each without and with gradient checkpointing.

    Args:
        splits: also those that split the model by degrees (`parallel.*`).
    """
    found = []
    for name, candidate in _candidates(workload, splits):
        largest = fit(candidate, device_bytes) if device_bytes else None
        found.append(Alternative(name, estimate(candidate), largest, _same(candidate, workload)))
    return found


def _candidates(workload: Workload, splits: bool) -> Iterator[tuple[str, Workload]]:
    for checkpointing in (False, True):
        suffix = " + gradient checkpointing" if checkpointing else ""
        for engine in every_engine():
            own = list(engine.layouts(workload.layout))
            shown = {layout.label for layout in own}
            if splits:
                own += [layout for layout in engine.split_layouts(workload) if layout.label not in shown]
            for layout in own:
                candidate = replace(workload, layout=layout, gradient_checkpointing=checkpointing)
                yield layout.label + suffix, candidate


def _same(candidate: Workload, workload: Workload) -> bool:
    """Whether a candidate is the configured run (nvme counts as another place)."""
    checkpointing = candidate.gradient_checkpointing == workload.gradient_checkpointing
    return checkpointing and candidate.layout.label == workload.layout.label
