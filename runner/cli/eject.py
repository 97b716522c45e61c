"""`python -m runner eject`: a standalone folder that trains the same thing without the runner."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner import rundir
from runner.cli.request import composed_request
from runner.cli.run_folder import run_folder
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.engines.base import EngineFile
from runner.errors import EXIT_COMPLETED, Problem, RequestError
from runner.recipe import Recipe, load_recipe


@dataclass(frozen=True)
class _Wanted:
    config: RunConfig
    recipe: Recipe
    total_steps: int | None
    own_file: EngineFile | None


def main(arguments: Sequence[str]) -> int:
    """Entry of the verb; returns the exit status.

    Raises:
        RequestError: a request that is wrong, or one that cannot be written as a script.
    """
    options = _parser().parse_args(list(arguments))
    to = options.to.expanduser().absolute()
    if to.exists():
        raise RequestError(Problem("--to", options.to, "this exists already", "name a new folder"))
    from runner.eject.folder import write_folder

    wanted = _wanted(options.what)
    to.parent.mkdir(parents=True, exist_ok=True)
    notes = write_folder(wanted.config, wanted.recipe, wanted.total_steps, wanted.own_file, to)
    print(f"wrote {to}")
    print("\n".join(notes))
    print(f"start it as {to / 'README.md'} says")
    return EXIT_COMPLETED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner eject", description="Write a standalone folder: one script, its files, no runner."
    )
    parser.add_argument("what", nargs="*", metavar="RUN_DIR | KEY=VALUE", help="a run, or overrides as for a run")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="the folder to write; a new one")
    return parser


def _wanted(what: list[str]) -> _Wanted:
    if len(what) == 1 and "=" not in what[0]:
        run_dir = run_folder(Path(what[0]))
        config = rundir.read_config(run_dir)
        return _Wanted(config, load_recipe(config), None, engine_of(config).file_of_run(run_dir))
    from runner.preflight.check import check

    checked = check(composed_request(what), starting=False)
    return _Wanted(checked.config, checked.recipe, checked.total_steps, checked.own_file)
