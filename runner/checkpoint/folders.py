"""The `checkpoints` folder of a run: which are there, which are whole, which are left-overs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from runner.checkpoint.manifest import Manifest, damage, read_manifest

CHECKPOINTS = "checkpoints"
DAMAGED = "damaged_"
_NAME = re.compile(r"step_(\d+)(_evaluated)?")
_TORN = (".*.partial", ".*.removed")
_CONVERTED = (".universal_*",)


@dataclass(frozen=True)
class Checkpoint:
    """A folder with a checkpoint's name; `damage()` says whether it is one."""

    path: Path
    step: int
    evaluated: bool

    def damage(self, checksums: bool = True) -> str | None:
        """What is wrong with it; None when it is whole."""
        return damage(self.path, checksums)

    @property
    def manifest(self) -> Manifest:
        """Its manifest; ValueError where it has none."""
        return read_manifest(self.path)


def name_of(step: int, evaluated: bool = False) -> str:
    """Folder name of a step's checkpoint."""
    return f"step_{step:08d}" + ("_evaluated" if evaluated else "")


def checkpoints(run_dir: Path) -> list[Checkpoint]:
    """All folders with a checkpoint's name, newest first: by number, not by text; of one step the
    evaluated one first.
    """
    found = []
    for path in (run_dir / CHECKPOINTS).glob("step_*"):
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            found.append(Checkpoint(path, int(match[1]), match[2] is not None))
    return sorted(found, key=lambda item: (item.step, item.evaluated), reverse=True)


def newest(run_dir: Path, checksums: bool) -> Checkpoint | None:
    """The newest checkpoint that is whole."""
    return next((item for item in checkpoints(run_dir) if item.damage(checksums) is None), None)


def set_aside(checkpoint: Checkpoint, wrong: str) -> str:
    """Rename a damaged checkpoint, so that nothing loads it; returns a line that says so."""
    aside = _free_name(checkpoint.path.with_name(DAMAGED + checkpoint.path.name))
    os.replace(checkpoint.path, aside)
    return f"checkpoint {checkpoint.path.name} is damaged ({wrong}); it was set aside as {aside.name}"


def _free_name(path: Path) -> Path:
    candidates = (path.with_name(f"{path.name}_{number}") if number else path for number in range(10_000))
    return next(candidate for candidate in candidates if not candidate.exists())


def remove_torn(run_dir: Path) -> None:
    """Delete what a killed run left half-written or half-deleted."""
    _remove(run_dir, _TORN)


def remove_converted(run_dir: Path) -> None:
    """Delete conversions for another number of ranks."""
    _remove(run_dir, _CONVERTED)


def _remove(run_dir: Path, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        for path in (run_dir / CHECKPOINTS).glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def remove(checkpoint: Checkpoint) -> None:
    """Delete a checkpoint; it stops being one before its first file goes."""
    gone = checkpoint.path.with_name(f".{checkpoint.path.name}.removed")
    shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.replace(checkpoint.path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def partial_folder(run_dir: Path, step: int, evaluated: bool) -> Path:
    """Where a checkpoint is written before it is one."""
    return run_dir / CHECKPOINTS / f".{name_of(step, evaluated)}.partial"


def universal_folder(checkpoint: Checkpoint) -> Path:
    """Where its DeepSpeed universal form lies, converted for another number of ranks."""
    return checkpoint.path.with_name(f".universal_{checkpoint.path.name}")


def put_in_place(partial: Path, final: Path) -> None:
    """One rename makes a written folder the checkpoint; both are on the disk when this returns."""
    sync_folder(partial)
    if final.exists():  # the same step of an earlier attempt, found damaged or written by hand
        shutil.rmtree(final)
    os.replace(partial, final)
    sync_folder(final.parent)


def sync_folder(path: Path) -> None:
    """Have the names in a folder written to the disk; where folders cannot be opened for that, do nothing."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
