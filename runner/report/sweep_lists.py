"""What sweeps were to consist of: `sweep.json` names every run, wherever its record lies by now."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.record_format import RECORD_FILE
from runner.regular_files import read_regular
from runner.report.reading import integer, mapping, sequence, text

SWEEP_FILE = "sweep.json"
_MOST_NAMED = 8


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep's list.

    Attributes:
        sweep: the sweep's folder.
        cell: number of the cell in its sweep; the repeats of a cell share it.
        purpose: `largest` where the cell runs at its largest micro batch, else empty.
        label: the overrides that tell it from the sweep's other runs.
        hash: the cell's identity; empty where its configuration is wrong.
        folder: where its record is or will be; it may lie in another sweep's folder.
    """

    sweep: Path
    cell: int | None
    purpose: str
    label: str
    hash: str
    folder: Path


def read_lists(files: Iterable[Path]) -> list[PlannedRun]:
    """The runs that these `sweep.json` files name; a file that cannot be read names none."""
    return [run for file in files for run in _planned(file)]


def _planned(file: Path) -> Iterator[PlannedRun]:
    try:
        content: Any = json.loads(read_regular(file))
    except (OSError, ValueError, RecursionError):
        return
    for entry in map(mapping, sequence(mapping(content).get("cells"))):
        job = text(entry.get("job"))
        number, *rest = job.split("-")
        yield PlannedRun(
            sweep=file.parent,
            cell=integer(entry.get("cell")) if "cell" in entry else int(number) if number.isdigit() else None,
            purpose="largest" if "largest" in rest else "",
            label=text(entry.get("label")) or " ".join(map(text, sequence(entry.get("overrides")))) or job,
            hash=text(entry.get("hash")),
            folder=Path(os.path.normpath(file.parent / (text(entry.get("folder")) or job))),
        )


def elsewhere(planned: Sequence[PlannedRun], found: Sequence[Path]) -> list[Path]:
    """Folders of planned runs that are not among the found ones and hold a record."""
    known = {folder.resolve() for folder in found}
    wanted = dict.fromkeys(run.folder for run in planned if run.folder.resolve() not in known)
    return [folder for folder in wanted if (folder / RECORD_FILE).is_file()]


def planned_repeats(planned: Sequence[PlannedRun]) -> dict[str, int]:
    """By a run's hash: how many runs its cell was to have, in the sweep that planned most."""
    sizes: dict[tuple[Path, int | None, str], int] = {}
    for run in planned:
        key = (run.sweep, run.cell, run.purpose)
        sizes[key] = sizes.get(key, 0) + 1
    counts: dict[str, int] = {}
    for run in planned:
        if run.hash:
            counts[run.hash] = max(counts.get(run.hash, 0), sizes[(run.sweep, run.cell, run.purpose)])
    return counts


def missing_notes(planned: Sequence[PlannedRun], status_of: dict[str, str]) -> list[str]:
    """A line for each sweep that is not complete: which of its runs have no completed record, and how they stand.

    Args:
        status_of: by hash, the best status of any record of that run.
    """
    notes = []
    for sweep in dict.fromkeys(run.sweep for run in planned):
        runs = [run for run in planned if run.sweep == sweep]
        missing = [(run, _status(run, status_of)) for run in runs if _status(run, status_of) != "completed"]
        if missing:
            named = [f"{run.label} ({status})" for run, status in missing[:_MOST_NAMED]]
            more = [f"and {len(missing) - _MOST_NAMED} more"] if len(missing) > _MOST_NAMED else []
            notes.append(
                f"Missing: {len(missing)} of the {len(runs)} runs of sweep {sweep.name}: {'; '.join([*named, *more])}."
            )
    return notes


def _status(run: PlannedRun, status_of: dict[str, str]) -> str:
    return status_of.get(run.hash, "not run") if run.hash else "wrong configuration"
