"""`python -m runner stop RUN_DIR [--now]`: end a run, on whatever cluster it is."""

from __future__ import annotations

from collections.abc import Sequence

from runner import clusters, rundir
from runner.cli.status import run_folder
from runner.errors import EXIT_COMPLETED, Problem, RequestError

USAGE = """usage: python -m runner stop RUN_DIR [--now]

Ask a run to checkpoint and end at its next optimizer step or evaluation batch; `resume` continues it.
--now: end it at once, without a checkpoint."""


def main(arguments: Sequence[str]) -> int:
    """Ask the run's cluster; returns the exit status."""
    folders = [text for text in arguments if text != "--now"]
    if len(folders) != 1:
        raise RequestError(
            Problem("RUN_DIR", None, "give the folder of one run", "type python -m runner stop RUN_DIR [--now]")
        )
    run_dir = run_folder(folders[0])
    cluster = clusters.of(rundir.read_config(run_dir))
    state = cluster.state(run_dir)
    if not state.startswith(("queued", "running")):
        raise RequestError(Problem("RUN_DIR", folders[0], f"this run is not under way: {state}", ""))
    print(cluster.stop(run_dir, now="--now" in arguments))
    return EXIT_COMPLETED
