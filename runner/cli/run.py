"""`python -m runner [overrides]`: one run, or with -m a sweep."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.cli.request import composed_request
from runner.errors import RequestError

if TYPE_CHECKING:
    from runner.compose import Composed

USAGE = """usage: python -m runner [run] [-m] [KEY=VALUE | GROUP=OPTION ...]

Compose, check and launch one run, time it and record it; without overrides the embedded default.
-m, --multirun: one run for each combination of values (KEY=A,B), see docs/sweeps.md.
`python -m runner --help` lists the groups, `python -m runner keys` the keys."""


def main(arguments: Sequence[str]) -> int:
    """Compose, then run; returns the exit status. What a run needs is imported when its request has been read: a typo
    is reported sooner.
    """
    started = time.monotonic()
    if (
        "-m" in arguments
        or "--multirun" in arguments
        or any(text.lstrip("+").startswith("sweep=") for text in arguments)
    ):
        from runner.sweep import run_sweep

        return run_sweep([argument for argument in arguments if argument not in ("-m", "--multirun")])
    composed = composed_request(arguments)
    return run_composed(composed, started)


def run_composed(composed: Composed, started: float) -> int:
    """Run it on the cluster it names; returns the exit status."""
    from runner import clusters

    cluster = clusters.of(composed.config)
    problems = cluster.problems(composed.config, composed.explicit)
    if problems:
        raise RequestError(problems)
    return cluster.submit(composed, started)
