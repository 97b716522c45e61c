"""`python -m runner export RUN_DIR`: the run's weights as a folder for `from_pretrained`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from runner import rundir
from runner.cli.run_folder import add_checkpoint, run_folder
from runner.errors import EXIT_COMPLETED


def main(arguments: Sequence[str]) -> int:
    """Entry of the verb; returns the exit status."""
    options = _parser().parse_args(list(arguments))
    from runner.inference.export import chosen_checkpoint, export

    run_dir = run_folder(options.run_dir)
    config = rundir.read_config(run_dir)
    checkpoint = chosen_checkpoint(run_dir, options.checkpoint, config.recipe.greater_is_better)
    name = "final" if checkpoint is None else checkpoint.path.name
    to = options.to.expanduser().absolute() if options.to else run_dir / "export" / name
    to.parent.mkdir(parents=True, exist_ok=True)
    export(run_dir, checkpoint, to)
    print(f"wrote {to} ({'the final weights' if checkpoint is None else checkpoint.path.name})")
    print(f"predict with python -m runner predict '{to}' --input FILE --output FILE")
    return EXIT_COMPLETED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner export",
        description="Write a folder for transformers' from_pretrained (weights, configuration, tokenizer) from a run.",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="folder of a run")
    add_checkpoint(parser)
    parser.add_argument("--to", type=Path, metavar="DIR", help="new folder (default: RUN_DIR/export/NAME)")
    return parser
