"""`python -m runner merge RUN_DIR`: the whole model of a run with an adapter, as a folder for `from_pretrained`."""

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
    from runner.inference.export import chosen_checkpoint, merge

    run_dir = run_folder(options.run_dir)
    config = rundir.read_config(run_dir)
    checkpoint = chosen_checkpoint(run_dir, options.checkpoint, config.recipe.greater_is_better)
    to = options.to.expanduser().absolute() if options.to else run_dir / "merged"
    to.parent.mkdir(parents=True, exist_ok=True)
    merge(run_dir, checkpoint, to)
    print(f"wrote {to} (the adapter of {'the final weights' if checkpoint is None else checkpoint.path.name}, merged)")
    print(f"load it with model.path='{to}', or transformers' from_pretrained")
    return EXIT_COMPLETED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner merge",
        description="Add a run's adapter to the weights that it was trained beside, in full precision, and write the "
        "whole model: a folder for transformers' from_pretrained that needs no peft.",
    )
    parser.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR", help="folder of a run with adapter=lora, qlora or dora"
    )
    add_checkpoint(parser)
    parser.add_argument("--to", type=Path, metavar="DIR", help="new folder (default: RUN_DIR/merged)")
    return parser
