"""`python -m runner resume RUN_DIR [overrides]`: resume an interrupted run, in its folder and its record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from runner import clusters, rundir
from runner.compose.changes import with_changes
from runner.errors import Problem, RequestError
from runner.resume import config_of
from runner.rundir.trusted import TRUST
from runner.single_run import resume_here

USAGE = """usage: python -m runner resume RUN_DIR [KEY=VALUE ...]

Resume an interrupted run from its newest whole checkpoint, in the same folder and the same record.
What may be changed: docs/reliability.md.
--trust-code: run the Python code that the folder names (a recipe elsewhere or changed, a model's own code)."""


def main(arguments: Sequence[str]) -> int:
    """Check what stands in the way, launch, and print the result; returns the exit status."""
    started = time.monotonic()
    if not arguments or ("=" in arguments[0] and not Path(arguments[0]).is_dir()):
        raise RequestError(
            Problem(
                "RUN_DIR",
                arguments[0] if arguments else None,
                "the folder of the run comes first",
                "type python -m runner resume RUN_DIR [KEY=VALUE ...]",
            )
        )
    run_dir, overrides = Path(arguments[0]).expanduser().absolute(), list(arguments[1:])
    if not (run_dir / rundir.CONFIG_FILE).is_file():
        return resume_here(run_dir, overrides, started)
    config, _ = with_changes(config_of(run_dir), [item for item in overrides if item != TRUST])
    return clusters.of(config).resume(run_dir, overrides, config, started)
