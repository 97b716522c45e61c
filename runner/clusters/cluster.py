"""What every cluster can do."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from runner.compose import Composed
from runner.config.schema import RunConfig
from runner.errors import Problem

GONE = "failed"


class Cluster(Protocol):
    """A kind of place where ranks run. Which keys it reads is said in `runner/config/clusters.py`."""

    name: str

    def problems(self, config: RunConfig, explicit: Collection[str]) -> list[Problem]:
        """What stands in the way, as far as it can be seen where the command was typed."""

    def resolve(self, config: RunConfig) -> RunConfig:
        """A copy with what the cluster decides (ranks, device) filled in, where another machine
        than this one runs it.
        """

    def render(self, config: RunConfig, run_dir: Path) -> dict[str, str]:
        """Files of its own in the run folder, by name, as text."""

    def submit(self, composed: Composed, started: float) -> int:
        """Run it, or hand it over; returns the command's exit status."""

    def resume(self, run_dir: Path, overrides: list[str], config: RunConfig, started: float) -> int:
        """As `submit`, for an interrupted run."""

    def state(self, run_dir: Path) -> str:
        """One word: queued, running, completed, preempted, failed or interrupted; and where, where that is known."""

    def stop(self, run_dir: Path, now: bool) -> str:
        """Ask a run to end with a checkpoint, or at once; returns a line that says what was done."""
