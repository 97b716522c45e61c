"""What every tracker does, and what it is told."""

from __future__ import annotations

import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from runner.errors import Problem

Scalar = str | int | float | bool


@dataclass(frozen=True)
class TrackedRun:
    """What is known of a run when it is opened in a tracker.

    Attributes:
        name: what people read, `0` of a sweep told apart by the sweep's folder.
        parameters: the resolved configuration, flattened; no text is longer than `flat.LONGEST_TEXT`.
        tags: method, status, git commit, command and the user's own.
        sweep: identity of the sweep this run is a cell of; None outside a sweep.
        resumed_step: optimizer steps that were done when this attempt began.
    """

    folder: Path
    name: str
    project: str
    parameters: dict[str, Scalar]
    tags: dict[str, str]
    started: float  # seconds since the epoch
    sweep: str | None = None
    resumed_step: int = 0


@dataclass(frozen=True)
class Line:
    """Numbers that belong to one moment of a run.

    Attributes:
        step: optimizer steps done.
        time: seconds since the epoch.
        values: name with its kind in front (`train/`, `epoch/`, `eval/`, `system/`) → number.
    """

    step: int
    time: float
    values: dict[str, float]


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        status: completed, failed, preempted, or killed where nothing closed the record.
        summary: figures of the whole run: phases, memory, best epoch, test metrics.
        files: files of the run folder worth keeping with it.
    """

    status: str
    reason: str | None
    time: float
    summary: dict[str, Scalar]
    files: tuple[Path, ...] = ()


class Tracker(ABC):
    """One tracker. Its library is imported in `start`, in a process that does nothing else.

    Every method may raise whatever its library raises; the caller reports it once and tries again later.
    """

    module: ClassVar[str]  # what is imported, to see whether it is installed
    extra: ClassVar[str]  # finetune-runner[EXTRA] installs it
    credentials: ClassVar[tuple[str, ...]] = ()  # environment variables that only this tracker's process gets

    def problems(self) -> list[Problem]:
        """What keeps it from working on this machine; nothing is imported and no network is used."""
        if importlib.util.find_spec(self.module) is not None:
            return []
        fix = f"pip install 'finetune-runner[{self.extra}]', or use tracker=none"
        return [Problem("tracker", self.extra, f"{self.module} is not installed", fix)]

    @abstractmethod
    def start(self, run: TrackedRun, known_id: str | None) -> str:
        """Open the run, or open it again.

        Args:
            known_id: what this method returned when the run was opened before.

        Returns:
            The run's identity in the tracker.
        """

    @abstractmethod
    def log(self, lines: Sequence[Line]) -> None:
        """Send numbers, steps and epochs alike, in the order in which they came about."""

    @abstractmethod
    def finish(self, ending: Ending) -> None:
        """Send how the run ended, and close it. A resume opens it again."""


def from_environment(name: str) -> str | None:
    """An environment variable; None where it is unset or empty."""
    return os.environ.get(name) or None
