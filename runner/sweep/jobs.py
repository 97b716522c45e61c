"""Cells → jobs: repeats with their seeds, checked, each with its identity, before the first one runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.compose import Composed
from runner.compose.multirun import ComposedCell
from runner.compose.overrides import is_sweep, parse_overrides
from runner.config.clusters import one_run_only
from runner.engines import engine_of
from runner.errors import Problem, RequestError
from runner.preflight.check import Checked, check
from runner.preflight.unused_keys import unread_sections
from runner.sweep.history import free_folder
from runner.sweep.identity import cell_hash, code_version

LARGEST = "largest"


@dataclass
class Job:
    """One run of a sweep.

    Attributes:
        name: number of the cell, with the repeat or `largest` behind it where there are several runs of a cell.
        label: the overrides in which the sweep's cells differ.
        purpose: `largest` where the micro batch is searched for first, else empty.
        checked: None where the configuration is wrong; `problems` then says why.
        hash: identity; None where the configuration is wrong.
    """

    cell: ComposedCell
    name: str
    label: str
    run_dir: Path
    repeat: int = 0
    purpose: str = ""
    checked: Checked | None = None
    hash: str | None = None
    problems: list[Problem] = field(default_factory=list)

    def record_entry(self, sweep: str) -> dict[str, Any]:
        """The record's `cell`."""
        return {
            "hash": self.hash,
            "sweep": sweep,
            "job": self.cell.job,
            "repeat": self.repeat,
            "purpose": self.purpose or None,
            "overrides": self.cell.overrides,
            "code": code_version(self.checked) if self.checked else None,
        }

    def list_entry(self, folder: Path, sweep_dir: Path) -> dict[str, Any]:
        """What the sweep's list (`sweep.json`) says of this run; `folder` is where its record is or will be."""
        return {
            "job": self.name,
            "cell": self.cell.job,
            "repeat": self.repeat,
            "purpose": self.purpose or None,
            "label": self.label,
            "overrides": self.cell.overrides,
            "hash": self.hash,
            "folder": os.path.relpath(folder, sweep_dir),
        }


def jobs_of(cells: Sequence[ComposedCell], sweep_dir: Path, typed: Sequence[str] = ()) -> list[Job]:
    """All jobs of a batch of cells, in their order: first the cells as configured, then those at their largest micro
    batch.

    Args:
        sweep_dir: where they go; not the cells' own where an earlier sweep is gone on with.
        typed: overrides as typed; those with one value tell no cells apart.
    """
    fixed = {item.key_or_group for item in parse_overrides(list(typed)) if not is_sweep(item)}
    plain, largest = [], []
    for cell in cells:
        varied = [
            item.input_line or ""
            for item in parse_overrides(cell.overrides)
            if item.key_or_group not in fixed and not item.key_or_group.startswith("hydra")
        ]
        label = " ".join(varied).replace("'", "") or "as configured"
        base = sweep_dir / cell.run_dir.relative_to(cell.sweep_dir)
        if cell.composed is None:
            plain.append(Job(cell, str(cell.job), label, base, problems=cell.problems))
            continue
        plain += _repeats(cell, cell.composed, label, base, "")
        if cell.composed.config.sweep.largest_batch:
            largest += _repeats(cell, cell.composed, label, base, LARGEST)
    # Repeat 0 of every cell, then repeat 1, …: a machine that slows down slows all cells alike.
    return sorted(plain, key=lambda job: job.repeat) + sorted(largest, key=lambda job: job.repeat)


def _repeats(cell: ComposedCell, composed: Composed, label: str, base: Path, purpose: str) -> list[Job]:
    count = composed.config.sweep.repeats
    jobs = []
    for repeat in range(count):
        suffix = _joined(purpose, f"repeat{repeat}" if count > 1 else "")
        name, folder = _joined(str(cell.job), suffix), base.with_name(_joined(base.name, suffix))
        job = Job(cell, name, _display_name(label, purpose, repeat, count), folder, repeat, purpose)
        jobs.append(_checked(job, composed))
    return jobs


def _joined(*parts: str) -> str:
    return "-".join(part for part in parts if part)


def _display_name(label: str, purpose: str, repeat: int, count: int) -> str:
    parts = [label, "at its largest batch" if purpose else "", f"repeat {repeat}" if count > 1 else ""]
    return ", ".join(part for part in parts if part)


def _checked(job: Job, composed: Composed) -> Job:
    config = composed.config.model_copy(deep=True)
    config.train.seed += job.repeat
    own = replace(composed, config=config, run_dir=free_folder(job.run_dir))
    unread = (
        []
        if config.sweep.largest_batch
        else unread_sections(
            composed.explicit, ("fit",), "only `python -m runner fit` and sweep.largest_batch=true read it"
        )
    )
    if unread:
        return replace(job, problems=unread)
    fixed = engine_of(config).fixed_batch(config, with_accumulation=True) if job.purpose == LARGEST else []
    if fixed:
        return replace(job, problems=fixed)
    elsewhere = one_run_only(config, "a sweep runs its cells on this machine, one after the other")
    if elsewhere:
        return replace(job, problems=elsewhere)
    try:
        checked = check(own)
    except RequestError as error:
        return replace(job, problems=[problem for problem in error.problems if problem.severity == "error"])
    return replace(job, run_dir=own.run_dir, checked=checked, hash=cell_hash(checked, job.purpose))
