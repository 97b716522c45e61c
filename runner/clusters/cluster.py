"""What every cluster can do."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Protocol

from runner.compose import Composed
from runner.config.schema import RunConfig
from runner.errors import Problem

GONE = "failed"


class Cluster(Protocol):
    """A kind of place where ranks run.

    Attributes:
        keys: keys of the section `cluster` that it reads.
        several_machines: whether a run may span more than one machine.
    """

    name: str
    keys: frozenset[str]
    several_machines: bool

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


def foreign_keys(cluster: Cluster, explicit: Iterable[str]) -> list[Problem]:
    """Keys of another cluster that were typed: they would have no effect."""
    typed = [key for key in explicit if key.startswith("cluster.") and key.split(".")[1] not in cluster.keys]
    reads = ", ".join(f"cluster.{key}" for key in sorted(cluster.keys)) or "none"
    return [
        Problem(
            key,
            None,
            f"cluster={cluster.name} does not read this key; it reads {reads}",
            f"leave it out, or choose its cluster with cluster={_reader(key)}",
        )
        for key in typed
    ]


def _reader(key: str) -> str:
    from runner.clusters import by_name

    return next((name for name in ("nodes", "slurm") if key.split(".")[1] in by_name(name).keys), "local")
