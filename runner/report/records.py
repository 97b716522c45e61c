"""Find run folders and read their records: one `Run` each, whatever state the record is in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.record_format import RECORD_FILE, SCHEMA_VERSION
from runner.regular_files import read_regular
from runner.report.liveness import runner_liveness
from runner.report.reading import mapping, text
from runner.report.run_view import Run, run_from_record, unreadable_run
from runner.report.sweep_lists import SWEEP_FILE
from runner.report.versions import schema_version

DEFAULT_FOLDERS = (Path("outputs"), Path("multirun"))


class NoSuchFolder(Exception):
    """A folder that was asked for does not exist or cannot be read; the message is one line for the user."""


@dataclass(frozen=True)
class Found:
    """Folders with a record and the `sweep.json` files of sweeps, each once, sorted by path."""

    runs: list[Path]
    sweeps: list[Path]


def find_run_folders(roots: Sequence[Path]) -> list[Path]:
    """Folders under `roots` that hold a record, each once, sorted by path.

    A root may be a run folder, its record.json, a sweep folder or any tree.

    Raises:
        NoSuchFolder: a root does not exist, or cannot be read.
    """
    return find(roots).runs


def find(roots: Sequence[Path]) -> Found:
    """Run folders and sweeps under `roots`.

    Raises:
        NoSuchFolder: a root does not exist, or cannot be read.
    """
    runs: dict[str, Path] = {}
    sweeps: dict[str, Path] = {}
    for root in roots:
        folder = root.parent if root.name == RECORD_FILE else root
        if not folder.is_dir():
            raise NoSuchFolder(f"no such folder: {root}")
        if not os.access(folder, os.R_OK | os.X_OK):
            raise NoSuchFolder(f"{root} cannot be read: permission denied")
        for match, is_run, is_sweep in _walk(str(folder)):
            if is_run:
                runs.setdefault(os.path.realpath(match), Path(match))
            if is_sweep:
                sweeps.setdefault(os.path.realpath(match), Path(match) / SWEEP_FILE)
    return Found(sorted(runs.values()), sorted(sweeps.values()))


def _walk(top: str) -> Iterator[tuple[str, bool, bool]]:
    """Folders with a record or a sweep's list, and which; checkpoints, models and hidden folders are not searched,
    links not followed.
    """
    for folder, subfolders, files in os.walk(top):
        is_run = RECORD_FILE in files
        if is_run or SWEEP_FILE in files:
            yield folder, is_run, SWEEP_FILE in files
        skipped = {"checkpoints", "model"} if is_run else set()
        subfolders[:] = [name for name in subfolders if name not in skipped and not name.startswith(".")]


def read_runs(folders: Iterable[Path]) -> list[Run]:
    """One run per folder, in the given order; never raises for what a record holds."""
    return [read_run(folder) for folder in folders]


def read_run(folder: Path) -> Run:
    """The run of one folder; a record that cannot be read becomes a row that says why."""
    try:
        raw = json.loads(read_regular(folder / RECORD_FILE))
    except OSError as error:
        return unreadable_run(folder, f"{RECORD_FILE} cannot be read: {error.strerror}")
    except (ValueError, RecursionError) as error:
        return unreadable_run(folder, f"{RECORD_FILE} is not valid JSON: {str(error)[:120]}")
    problem = _version_problem(raw)
    if problem:
        return unreadable_run(folder, problem)
    if not text(raw.get("status")):
        return unreadable_run(folder, f"{RECORD_FILE} says no status: it is not a whole record")
    return run_from_record(judge_status(raw), folder)


def _version_problem(raw: object) -> str | None:
    """Why a parsed file is no record that can be understood, or None."""
    if not isinstance(raw, Mapping):
        return f"{RECORD_FILE} holds no JSON object"
    version = schema_version(raw)
    if version is None:
        return f"{RECORD_FILE} has no schema_version: it is not a record of this runner"
    if not 1 <= version <= SCHEMA_VERSION:
        return f"schema version {version} is unknown here (newest known: {SCHEMA_VERSION}); use a newer runner"
    return None


def judge_status(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record with its true status: one still `running` whose runner is gone has failed."""
    if raw.get("status") != "running":
        return raw
    runner = mapping(raw.get("runner"))
    liveness = runner_liveness(runner)
    if liveness == "dead":
        return {**raw, "status": "failed", "reason": "the runner died"}
    if liveness == "unknown" and not raw.get("reason"):
        host = text(runner.get("host"))
        return {
            **raw,
            "reason": f"on host {host}, not checked from here" if host else "whether it still runs is not recorded",
        }
    return raw
