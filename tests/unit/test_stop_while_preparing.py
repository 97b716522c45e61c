"""A stop that comes while data are prepared takes effect at once: no rank looks for requests while it tokenises."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from rich.console import Console

from runner.config.schema import RunConfig
from runner.launch.process_signals import Stopping
from runner.launch.watch import StoppedEarly, Watch
from runner.rundir.heartbeat import Heartbeat


def _watched(run_dir: Path, phases: list[str]) -> tuple[Watch, list[bool]]:
    """A watch over ranks that stand in these phases, asked to stop once; the list grows when it ends the job."""
    for rank, phase in enumerate(phases):
        Heartbeat(run_dir, rank).beat(phase=phase)
    stop, killed = Stopping(), [False]
    stop.note(signal.SIGTERM, None)
    return Watch(run_dir, RunConfig(), stop, Console(quiet=True), lambda: killed.append(True)), killed


@pytest.mark.parametrize("phases", [["preparing data: train"], ["preparing data: train", "preparing data"]])
def test_preparing_ranks_are_ended(tmp_path: Path, phases: list[str]) -> None:
    watch, killed = _watched(tmp_path, phases)
    with pytest.raises(StoppedEarly):
        watch()
    assert killed[-1]


@pytest.mark.parametrize("phases", [["training"], ["preparing data: train", "training"], ["evaluating"], []])
def test_others_end_at_their_next_step(tmp_path: Path, phases: list[str]) -> None:
    watch, killed = _watched(tmp_path, phases)
    watch()
    assert not killed[-1]
