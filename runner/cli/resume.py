"""`python -m runner resume RUN_DIR [overrides]`: resume an interrupted run, in its folder and its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from runner import clusters, rundir
from runner.cli.single_run import announce, conclude
from runner.compose.changes import with_changes
from runner.engines.base import ConversionStopped
from runner.errors import Problem, RequestError
from runner.execution import Launch, run_attempt
from runner.launch.host_client import Host
from runner.launch.host_pool import needs_no_hub
from runner.launch.process_signals import Stopping, stopping
from runner.launch.watch import console as terminal
from runner.preflight.check import Checked
from runner.resume import config_of, find, open_run, prepare, wait_for_orphans
from runner.rundir.trusted import TRUST

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


def resume_here(
    run_dir: Path, overrides: list[str], started: float, join: Callable[[Checked, Stopping], Launch] | None = None
) -> int:
    """Resume on this machine; `join` waits for the other machines of the run."""
    console = terminal()
    say = partial(console.print, highlight=False, markup=False)
    trusted = TRUST in overrides
    overrides = [item for item in overrides if item != TRUST]
    record = open_run(run_dir)
    with rundir.held(run_dir):
        wait_for_orphans(run_dir, say)
        found = find(run_dir, record, overrides, trusted)  # outside `stopping`: Ctrl-C ends a long checksum at once
        with stopping() as stop:
            try:
                request = prepare(found, overrides, started, say, lambda: stop.asked)
            except ConversionStopped:
                say(f"stopped before any rank was started; resume with python -m runner resume '{run_dir}'")
                return stop.exit_status
            host = Host(found.config, offline=needs_no_hub(found.config))
            try:
                announce(request.checked, console)
                if join is not None:
                    request.launch = join(request.checked, stop)
                ended = run_attempt(request, host, stop, console)
            finally:
                host.close()
    return conclude(ended, request.checked, console)
