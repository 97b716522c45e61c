"""Arguments that several verbs have: the folder of a run, and one of its checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

from runner import rundir
from runner.errors import Problem, RequestError


def run_folder(given: Path) -> Path:
    """The absolute path of a run's folder.

    Raises:
        RequestError: where it holds no run.
    """
    run_dir = given.expanduser().absolute()
    if not (run_dir / rundir.CONFIG_FILE).is_file():
        raise RequestError(Problem("RUN_DIR", given, "this is no run folder", "name the folder of a run"))
    return run_dir


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """`--checkpoint NAME`."""
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="a checkpoint's folder name or step, or best; default: the final weights, else the newest checkpoint",
    )
