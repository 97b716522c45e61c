"""`python -m runner status [RUN_DIR ...]`: where runs stand, on whatever cluster they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner import clusters, rundir
from runner.errors import EXIT_COMPLETED, Problem, RequestError

USAGE = """usage: python -m runner status [RUN_DIR ...]

One line a run: queued, running, completed, preempted, failed or interrupted. Without a folder: all runs in
./outputs and ./multirun that are queued or running."""
SEARCHED = ("outputs", "multirun")


def main(arguments: Sequence[str]) -> int:
    """Print a line a run; returns the exit status."""
    folders = [run_folder(text) for text in arguments]
    shown = folders or _under_way()
    for run_dir in shown:
        print(f"{run_dir}  {_state(run_dir)}")
    if not shown:
        print(f"no run in {' or '.join(f'./{name}' for name in SEARCHED)} is queued or running")
    return EXIT_COMPLETED


def run_folder(text: str) -> Path:
    """A run's folder as typed.

    Raises:
        RequestError: where there is no run in it.
    """
    run_dir = Path(text).expanduser().absolute()
    if not (run_dir / rundir.CONFIG_FILE).is_file():
        raise RequestError(
            Problem("RUN_DIR", text, "there is no run in it (no config.yaml)", "give the folder of a run")
        )
    return run_dir


def _state(run_dir: Path) -> str:
    try:
        return clusters.of(rundir.read_config(run_dir)).state(run_dir)
    except FileNotFoundError:
        return "rendered, never started"
    except (OSError, ValueError) as error:
        return f"unknown ({str(error).splitlines()[0]})"


def _under_way() -> list[Path]:
    found = [
        path.parent.absolute() for name in SEARCHED for path in sorted(Path(name).glob(f"**/{rundir.CONFIG_FILE}"))
    ]
    return [run_dir for run_dir in found if _state(run_dir).startswith(("queued", "running"))]
