"""`python -m runner predict RUN_DIR|MODEL --input FILE --output FILE`: predictions for rows without labels."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from runner import rundir
from runner.config.schema import RunConfig
from runner.config.sequence_limits import config_folder
from runner.errors import EXIT_COMPLETED, Problem, RequestError


def main(arguments: Sequence[str]) -> int:
    """Entry of the verb; returns the exit status."""
    options = _parser().parse_intermixed_args(list(arguments))
    from runner.inference.predict import OUTPUTS, check_columns, predict, rows_of, write
    from runner.recipe import load_recipe

    if options.output.suffix.lower() not in OUTPUTS:
        raise RequestError(
            Problem("--output", options.output, f"the ending is not one of {', '.join(OUTPUTS)}", "use .csv")
        )
    if not options.output.absolute().parent.is_dir():
        raise RequestError(Problem("--output", options.output, "its folder does not exist", "make it first"))
    source = options.source.expanduser().absolute()
    config = _with_columns(_config_of(source), options.columns)
    rows = rows_of(options.input)
    check_columns(load_recipe(config), rows, options.input)
    with tempfile.TemporaryDirectory() as scratch:
        folder = _weights_of(source, config, Path(scratch))
        found = list(predict(folder, config, rows, lambda line: print(line, file=sys.stderr)))
    try:
        write(found, options.output)
    except OSError as error:
        raise RequestError(Problem("--output", options.output, str(error.strerror), "name another file")) from None
    print(f"wrote {options.output}: {len(found)} rows")
    return EXIT_COMPLETED


def _config_of(source: Path) -> RunConfig:
    """The configuration of the run that a folder is, was exported from, or lies in."""
    import yaml

    from runner.inference.export import RUN_CONFIG

    if (source / RUN_CONFIG).is_file():
        return RunConfig.model_validate(yaml.safe_load((source / RUN_CONFIG).read_text(encoding="utf-8")))
    for folder in (source, source.parent):
        if (folder / rundir.CONFIG_FILE).is_file():
            return rundir.read_config(folder)
    raise RequestError(
        Problem(
            "RUN_DIR|MODEL",
            source,
            "this is neither a run folder nor a model that `export` wrote, so nothing says which recipe reads the rows",
            "name the folder of a run, or export it with python -m runner export RUN_DIR",
        )
    )


def _with_columns(config: RunConfig, typed: Sequence[str]) -> RunConfig:
    """The configuration with columns mapped as typed: `dataset.columns.sentence1=text`."""
    changed = config.model_copy(deep=True)
    for item in typed:
        key, sign, value = item.partition("=")
        if not sign or not key.startswith("dataset.columns."):
            raise RequestError(
                Problem(key, value or None, "predict reads dataset.columns.NAME=COLUMN only", "leave it out")
            )
        changed.dataset.columns[key.removeprefix("dataset.columns.")] = value
    return changed


def _weights_of(source: Path, config: RunConfig, scratch: Path) -> Path:
    """The `from_pretrained` folder: the source itself, a run's `model`, or its newest checkpoint, exported."""
    from runner.inference.export import chosen_checkpoint, export

    if (config_folder(source) / "config.json").is_file():
        return source
    if (source / "model").is_dir():
        return source / "model"
    checkpoint = chosen_checkpoint(source, None, config.recipe.greater_is_better)
    export(source, checkpoint, scratch / "model")
    return scratch / "model"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runner predict",
        description="Predict rows of a file with a run's model. No labels are needed; the rows' own columns stay. "
        "Classes come with probabilities, replies and continuations as text.",
    )
    parser.add_argument("source", type=Path, metavar="RUN_DIR|MODEL", help="folder of a run, or one that export wrote")
    parser.add_argument(
        "columns", nargs="*", metavar="dataset.columns.NAME=COLUMN", help="columns that have other names"
    )
    parser.add_argument(
        "--input", type=Path, required=True, metavar="FILE", help="csv, tsv, jsonl, json, parquet or txt"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help=".csv or .jsonl")
    return parser
