"""The data set, checked before any rank starts: keys, files, rows. Columns and labels have checks of their own."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from runner import paths
from runner.config.schema import RunConfig
from runner.data.files import FORMATS, SEPARATED
from runner.data.opening import data_ending
from runner.data.reading import UnreadableFile
from runner.data.scan import SplitScan, scan_split
from runner.data.source import SplitSource, named_files, split_paths
from runner.errors import Problem, nearest
from runner.preflight.columns import column_problems, text_problems
from runner.preflight.findings import on_split, places
from runner.preflight.labels import given_names, label_problems
from runner.recipe import Recipe

_URL = re.compile(r"(^|/)(https?|s3|gs|hf|ftp|abfss?):/")  # a path keeps one of the two slashes
SPLITS = ("train", "validation", "test")
_DIALECT = ("delimiter", "quoting")
_DROP = "or leave them out with dataset.drop_bad_rows=true (their number stands in the notes)"


def check_data(config: RunConfig, recipe: Recipe, typed: Collection[str] = ()) -> list[Problem]:
    """Problems of the data set's keys, and of local and bundled data; fills in `dataset.rows` and
    `dataset.label_names`.

    Args:
        typed: keys of the command line; a data set's own file may serve other recipes as well.
    """
    problems = _roles(config, recipe, typed) + given_names(config, recipe, typed) + _held_out(config)
    if config.dataset.source == "hub":
        return problems + _only_for_files(config, typed)
    needed = ("validation",) if config.mode == "evaluate" else ("train", "validation")
    problems += [_missing_split(config, split) for split in needed if named_files(config.dataset, split) is None]
    scans: dict[str, SplitScan] = {}
    for split in SPLITS:
        found = _scan(config, recipe, split)
        if isinstance(found, Problem):
            problems.append(found)
        elif found is not None:
            scans[split] = found
            problems += _rows(config, split, found)
    problems += _dialect_unread(config, typed) + column_problems(config, recipe, scans)
    if any(problem.severity == "error" for problem in problems):
        return problems
    config.dataset.rows = {split: scan.rows for split, scan in scans.items()}
    return problems + text_problems(config, recipe, scans) + label_problems(config, recipe, scans)


def _roles(config: RunConfig, recipe: Recipe, typed: Collection[str]) -> list[Problem]:
    """Columns that the recipe does not read."""
    unread = [
        name
        for name in config.dataset.columns
        if name not in recipe.columns and ("dataset.columns" in typed or f"dataset.columns.{name}" in typed)
    ]
    problems = []
    for name in unread:
        near = nearest(name, recipe.columns)
        fix = f"did you mean dataset.columns.{near}?" if near else "leave it out"
        why = f"recipe={config.recipe.name} reads no such column; it reads {', '.join(recipe.columns)}"
        problems.append(Problem(f"dataset.columns.{name}", config.dataset.columns[name], why, fix))
    return problems


def _held_out(config: RunConfig) -> list[Problem]:
    """A validation split that is both named and held out."""
    dataset = config.dataset
    if dataset.validation_fraction is None or dataset.source == "hub" or dataset.validation is None:
        return []
    why = f"the validation split is named already (dataset.validation={dataset.validation})"
    fix = "add dataset.validation=null, or leave this out"
    return [Problem("dataset.validation_fraction", dataset.validation_fraction, why, fix)]


def _only_for_files(config: RunConfig, typed: Collection[str]) -> list[Problem]:
    """Keys that decide how files are read, beside a hub data set, which is no file of the user's."""
    keys = ("delimiter", "quoting", "encoding", "drop_bad_rows", "validation_fraction", "validation_seed")
    train = config.dataset.train
    problems = []
    for name in keys:
        if f"dataset.{name}" not in typed:
            continue
        fix = "leave it out"
        if name == "validation_fraction":
            fix = f"""use 'dataset.train="{train}[:90%]"' 'dataset.validation="{train}[90%:]"'"""
        value = getattr(config.dataset, name)
        problems.append(Problem(f"dataset.{name}", value, "this has no effect on a data set of the hub", fix))
    return problems


def _dialect_unread(config: RunConfig, typed: Collection[str]) -> list[Problem]:
    """How cells are separated, where no file has cells."""
    endings = {data_ending(path) for split in SPLITS for path in split_paths(config.dataset, split)}
    if endings & set(SEPARATED):
        return []
    why = f"this has no effect: only {' and '.join(SEPARATED[:2])} files are cut into cells"
    keys = [name for name in _DIALECT if f"dataset.{name}" in typed and getattr(config.dataset, name) is not None]
    return [Problem(f"dataset.{name}", getattr(config.dataset, name), why, "leave it out") for name in keys]


def _missing_split(config: RunConfig, split: str) -> Problem:
    fix = f"add dataset.{split}=FILE"
    if split == "validation" and config.dataset.train is not None:
        fix += ", or hold a tenth of the training rows out with dataset.validation_fraction=0.1"
    return Problem(f"dataset.{split}", None, "this split is needed", fix)


def _scan(config: RunConfig, recipe: Recipe, split: str) -> SplitScan | Problem | None:
    named = named_files(config.dataset, split)
    unused = config.mode == "evaluate" and split == "train" and recipe.label_column is None
    if named is None or unused:
        return None
    source = SplitSource.of(recipe, split)
    absent = next((path for path in source.paths if not path.is_file()), None)
    if absent is not None:
        return Problem(f"dataset.{split}", named, *_absent_file(split, absent))
    try:
        scan = scan_split(source, paths.cache_dir(config.cache_dir))
    except UnreadableFile as error:
        return on_split(config, split, str(error), error.fix)
    if scan.rows == 0:
        lost = f": {scan.left_out} rows are bad: {places(scan.bad if scan.bad.count else scan.dropped, 2)}"
        why = f"this split has no rows{lost if scan.left_out else ''}"
        return on_split(config, split, why, "fix the file" if scan.left_out else f"set dataset.{split}=FILE")
    return scan


def _absent_file(split: str, path: Path) -> tuple[str, str]:
    """Why a path is no file, and what may have been meant."""
    fix = f"set dataset.{split}=FILE"
    if path.is_dir():
        inside = sorted(item for item in path.iterdir() if data_ending(item) in FORMATS)
        if inside:
            pattern = f"{path}/*{''.join(inside[0].suffixes[-2:])}"
            fix += f" (it holds {', '.join(item.name for item in inside[:4])}; all of one kind: {pattern})"
        return f"this is a folder, not a file: {path}", fix
    if path.exists():
        return f"is no regular file: {path}", fix
    if _URL.search(str(path)):
        return "this is an address, not a file", f"download it, and {fix}"
    if set("*?[") & set(str(path)):
        return f"no file fits this pattern: {path}", fix
    siblings = [item.name for item in path.parent.iterdir() if item.is_file()] if path.parent.is_dir() else []
    near = nearest(path.name, siblings)
    return f"no such file: {path}", fix + (f" (did you mean {path.parent / near}?)" if near else "")


def _rows(config: RunConfig, split: str, scan: SplitScan) -> list[Problem]:
    """Rows that cannot be read or were left out, and what reading has to say."""
    problems = [on_split(config, split, note, "", "notice") for note in scan.notes]
    drops = config.dataset.drop_bad_rows and split != "test"
    held_out = split == "validation" and config.dataset.validation is None  # told of the training split already
    if drops and scan.left_out and not held_out:
        first = places(scan.dropped if scan.dropped.count else scan.bad)
        why = f"{scan.left_out:,} rows were left out, as dataset.drop_bad_rows says, {scan.rows:,} are used: {first}"
        problems.append(on_split(config, split, why, "", "notice"))
    if drops:
        return problems
    if scan.bad.count == 1:
        fix = f"fix the row, {_DROP.replace('them', 'it').replace('their number', 'that')}" if split != "test" else ""
        problems.append(on_split(config, split, str(scan.bad.first[0]), fix or "fix the row"))
    elif scan.bad.count:
        fix = f"fix the rows, {_DROP}" if split != "test" else "fix the rows"
        problems.append(on_split(config, split, f"{scan.bad.count:,} rows cannot be read: {places(scan.bad)}", fix))
    return problems
