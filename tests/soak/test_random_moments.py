"""Kills and signals at random moments, over launchers and stages: each time a clean end, and a resume that is
bit-equal.

`make soak`; RUNNER_SOAK_SEED repeats a sequence, RUNNER_SOAK_CASES says how many of each kind. About a quarter of a
minute a case on a free machine.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Result
from tests.interrupting import LAUNCHERS, SHORT, Started, numbers

CASES = int(os.environ.get("RUNNER_SOAK_CASES", "20"))  # of each kind; CI takes fewer, to keep within its time
SEED = int(os.environ.get("RUNNER_SOAK_SEED", "6"))
METHODS = list(LAUNCHERS)
OPTIONS = (*SHORT, "checkpoint.every_steps=2", "checkpoint.every_epoch=true")


@pytest.fixture(scope="module")
def whole(real_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, Result] = {}

    def run(launcher: str) -> Result:
        if launcher not in known:
            known[launcher] = real_run(*LAUNCHERS[launcher], *SHORT, run_dir=tmp_path_factory.mktemp(launcher) / "run")
        return known[launcher]

    return run


def interrupted(launcher: str, case: int, kind: str, run_dir: Path) -> tuple[Started, Result]:
    """Start a run, wait for a random moment after its heartbeats appeared, strike."""
    chance = random.Random(f"{SEED} {kind} {case}")
    started = Started(*LAUNCHERS[launcher], *OPTIONS, run_dir=run_dir)
    started.wait_until(lambda: (run_dir / "heartbeat/rank_1.json").exists())
    delay = chance.uniform(0.0, 6.0)
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.process.wait(delay)
        return started, started.end()
    if kind == "rank":
        started.family = started.processes()
        with contextlib.suppress(
            FileNotFoundError, psutil.NoSuchProcess
        ):  # the ranks have just ended, the runner has not
            started.rank(chance.randrange(2)).kill()
    else:
        started.signal(
            signal.SIGKILL if kind == "runner" else signal.SIGTERM, everyone=kind == "term" and chance.random() < 0.5
        )
    return started, started.end()


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", range(CASES))
@pytest.mark.parametrize("kind", ["kill", "term"])
def test_at_a_random_moment(kind: str, case: int, whole: Any, real_run: Any, tmp_path: Path) -> None:
    launcher = METHODS[case % len(METHODS)]
    struck = kind if kind == "term" else ("rank", "runner")[case % 2]
    started, ended = interrupted(launcher, case, struck, tmp_path / "run")
    assert started.gone_within(10)
    if ended.returncode == 0 or (
        struck == "runner" and ended.record["status"] == "completed"
    ):  # the record was closed, the runner not yet gone
        assert numbers(ended) == numbers(whole(launcher))
        return
    expected = {"rank": (1,), "runner": (-9,), "term": (75,)}[struck]
    assert ended.returncode in expected, ended.text
    resumed = real_run.resume(tmp_path / "run")
    assert resumed.returncode == 0, resumed.text
    assert numbers(resumed) == numbers(whole(launcher))


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_eight_embedded_defaults_at_the_same_moment(tmp_path: Path) -> None:
    """One epoch each: what they could fight over is the start (ports, caches, the devices' lock)."""
    typed = ("launcher.num_processes=1", "train.epochs=1")
    runs = [Started(*typed, run_dir=tmp_path / f"run{number}") for number in range(8)]
    results = [run.end(timeout=550) for run in runs]
    assert [result.returncode for result in results] == [0] * 8, [result.text for result in results]
