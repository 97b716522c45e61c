"""`python -m runner new NAME [--from RECIPE] [--to DIR]`: your own recipe as a copy of one that runs."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from runner.config.catalogue import BUNDLED, option_files
from runner.errors import EXIT_COMPLETED
from runner.scaffold import Template, create, template

DEFAULT = "deberta_mrpc"


def main(arguments: Sequence[str]) -> int:
    """Write the copy and say what to edit next; returns the exit status."""
    given = _parser().parse_args(arguments)
    source = template(given.source)
    root = Path(given.to).expanduser()
    code, settings = create(given.name, source, root)
    print("\n".join(next_steps(given.name, source, root, code, settings)))
    return EXIT_COMPLETED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner new", description="Start your own recipe as a renamed copy of one that runs."
    )
    parser.add_argument("name", help="name of the new recipe, a Python identifier such as my_task")
    parser.add_argument(
        "--from",
        dest="source",
        default=DEFAULT,
        metavar="RECIPE",
        help=f"recipe to copy: {', '.join(sorted(option_files('recipe')))} (default {DEFAULT})",
    )
    parser.add_argument(
        "--to",
        default=".",
        metavar="DIR",
        help="folder to write recipes/ and conf/recipe/ into (default: the current one)",
    )
    return parser


def next_steps(name: str, source: Template, root: Path, code: Path, settings: Path) -> list[str]:
    """What was written, how it runs, and what to edit."""
    model, _ = BUNDLED.get(source.family, BUNDLED["encoder"])
    change = "" if root.resolve() == Path.cwd().resolve() else f"cd {shlex.quote(str(root))} && "
    command = f"{change}python -m runner recipe={name}"
    runs = (
        f"  {command}"
        if source.family == "encoder"
        else f"  {command} model={model}        offline; without model= the YAML's own model is fetched from the hub"
    )
    return [
        f"wrote {code}",
        f"wrote {settings}",
        "It runs unchanged, from the folder that holds recipes/ and conf/:",
        runs,
        "Edit next:",
        f"  {code.name}: `columns` (what it reads), `features` (how a row becomes tokens), `score` (how it is judged)",
        f"  {settings.name}: the model (defaults list), `metric_for_best`, values such as train.epochs or optimizer.lr",
        "  your data: dataset=files dataset.train=FILE dataset.validation=FILE "
        f"dataset.columns.{_first_column(code)}=YOUR_COLUMN",
    ]


def _first_column(code: Path) -> str:
    from runner.recipe import recipe_class

    return next(iter(recipe_class(str(code.absolute())).columns), "COLUMN")
