"""The data set, checked before any rank starts: files, columns, labels, missing text."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path

from runner import places
from runner.data.files import UnreadableFile, header
from runner.data.labels import HIDDEN, LabelMap, as_label, distinct, label_names
from runner.data.scan import SplitScan, scan_split, split_paths
from runner.errors import Problem
from runner.recipe import Recipe
from runner.schema import RunConfig

SPLITS = ("train", "validation", "test")


def check_data(config: RunConfig, recipe: Recipe) -> list[Problem]:
    """Problems of local and bundled data; fills in `dataset.rows` and `dataset.label_names`."""
    if config.dataset.source == "hub":
        return []
    needed = ("validation",) if config.mode == "evaluate" else ("train", "validation")
    problems = [_missing_split(split) for split in needed if getattr(config.dataset, split) is None]
    scans: dict[str, SplitScan] = {}
    for split in SPLITS:
        found = _scan(config, recipe, split)
        if isinstance(found, Problem):
            problems.append(found)
        elif found is not None:
            scans[split] = found
    problems += _one_column_twice(recipe)
    for split, scan in scans.items():
        problems += _columns(config, recipe, split, scan) + _other_files(config, recipe, split, scan)
    if any(problem.severity == "error" for problem in problems):
        return problems
    config.dataset.rows = {split: scan.rows for split, scan in scans.items()}
    return problems + _texts(config, recipe, scans) + _labels(config, recipe, scans)


def _missing_split(split: str) -> Problem:
    return Problem(f"dataset.{split}", None, "this split is needed", f"add dataset.{split}=FILE")


def _scan(config: RunConfig, recipe: Recipe, split: str) -> SplitScan | Problem | None:
    if getattr(config.dataset, split) is None or (config.mode == "evaluate" and split == "train" and recipe.label_column is None):
        return None
    paths = split_paths(config.dataset, split)
    absent = [path for path in paths if not path.is_file()]
    if absent:
        return Problem(f"dataset.{split}", getattr(config.dataset, split), f"no such file: {absent[0]}", f"set dataset.{split}=FILE" + _near_file(absent[0]))
    label = recipe.column(recipe.label_column) if recipe.label_column else None
    try:
        limit = {"train": config.dataset.max_train_rows, "validation": config.dataset.max_validation_rows}.get(split)
        scan = scan_split(paths, label, places.cache_dir(config.cache_dir), limit)
    except UnreadableFile as error:
        return Problem(f"dataset.{split}", getattr(config.dataset, split), str(error), "mend the file")
    if scan.rows == 0:
        return Problem(f"dataset.{split}", getattr(config.dataset, split), "this split has no rows", f"set dataset.{split}=FILE")
    return scan


def _near_file(path: Path) -> str:
    siblings = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, siblings, n=1)
    return f" (did you mean {path.parent / near[0]}?)" if near else ""


def _columns(config: RunConfig, recipe: Recipe, split: str, scan: SplitScan) -> list[Problem]:
    problems = []
    padded = [name for name in scan.raw_columns if name != name.strip()]
    if padded:
        problems.append(Problem(f"dataset.{split}", getattr(config.dataset, split), f"blanks around column names were trimmed: {', '.join(map(repr, padded))}", "", "notice"))
    twice = sorted({name for name in scan.columns if scan.columns.count(name) > 1})
    if twice:
        problems.append(
            Problem(f"dataset.{split}", getattr(config.dataset, split), f"two columns have the same name: {', '.join(map(repr, twice))}", "rename one of them in the file")
        )
    for name in recipe.columns:
        column = recipe.column(name)
        optional = name in recipe.optional_columns or (split == "test" and name == recipe.label_column)
        if column is None and not optional:
            problems.append(Problem(f"dataset.columns.{name}", "null", "the recipe needs this column", f"set dataset.columns.{name}=COLUMN"))
        elif column is not None and column not in scan.columns:
            assumed = optional and name not in config.dataset.columns
            problems.append(_without_column(split, name) if assumed else _absent_column(split, name, column, scan))
    return problems


def _one_column_twice(recipe: Recipe) -> list[Problem]:
    """The label among the texts would be learned from itself."""
    if recipe.label_column is None:
        return []
    label = recipe.column(recipe.label_column)
    texts = [name for name in recipe.columns if name != recipe.label_column and label is not None and recipe.column(name) == label]
    return [
        Problem(f"dataset.columns.{name}", label, "this is the column of the labels as well", f"set dataset.columns.{name}=COLUMN or dataset.columns.{recipe.label_column}=COLUMN")
        for name in texts
    ]


def _other_files(config: RunConfig, recipe: Recipe, split: str, scan: SplitScan) -> list[Problem]:
    """Further files of a split must have the columns of the first that the recipe reads."""
    problems = []
    used = {recipe.column(name) for name in recipe.columns} & set(scan.columns)
    for path in split_paths(config.dataset, split)[1:]:
        absent = sorted(str(name) for name in used - {name.strip() for name in header(path)})
        if absent:
            problems.append(
                Problem(
                    f"dataset.{split}",
                    path,
                    f"this file lacks columns that the split's first file has: {', '.join(map(repr, absent))}",
                    "give all files of a split the same columns",
                )
            )
    return problems


def _absent_column(split: str, name: str, column: str, scan: SplitScan) -> Problem:
    near = get_close_matches(column, scan.columns, n=1, cutoff=0.3)
    found = ", ".join(repr(item) for item in scan.raw_columns)
    return Problem(f"dataset.columns.{name}", column, f"the {split} split has no such column; it has {found}", f"set dataset.columns.{name}={near[0] if near else 'COLUMN'}")


def _without_column(split: str, name: str) -> Problem:
    return Problem(
        f"dataset.columns.{name}", None, f"the {split} split has no column {name!r}, the run goes without it", f"set dataset.columns.{name}=COLUMN, or null to say so", "notice"
    )


def _texts(config: RunConfig, recipe: Recipe, scans: dict[str, SplitScan]) -> list[Problem]:
    problems = []
    for split, scan in scans.items():
        for name in recipe.columns:
            column = recipe.column(name)
            if name == recipe.label_column or column not in scan.empty or name in recipe.may_be_empty:
                continue
            problems.append(
                Problem(f"dataset.{split}", getattr(config.dataset, split), f"column {column!r} has no text in row {scan.empty[column]}", "fill it in or remove the row")
            )
    return problems


def _labels(config: RunConfig, recipe: Recipe, scans: dict[str, SplitScan]) -> list[Problem]:
    """One label map, from the training split; every other label must be in it."""
    if recipe.label_column is None:
        return []
    column = recipe.column(recipe.label_column)
    problems = [
        Problem(f"dataset.{split}", getattr(config.dataset, split), f"column {column!r} has no label in row {scan.empty[column]}", "fill it in or remove the row")
        for split, scan in scans.items()
        if column in scan.empty and split != "test"
    ]
    if "train" in scans:
        problems += _one_label_map(config, scans)
    elif not config.dataset.label_names:
        problems.append(Problem("dataset.label_names", None, "without a training split the class names must be given", "add dataset.label_names=[NAME,NAME]"))
    return problems if problems and problems[-1].severity == "error" else problems + _unseen(config, scans)


def _one_label_map(config: RunConfig, scans: dict[str, SplitScan]) -> list[Problem]:
    found = distinct(scans["train"].labels)
    if any(isinstance(value, float) for value in found) or len(found) > 1000:
        return [Problem("dataset.train", config.dataset.train, f"labels are no classes: {', '.join(map(str, found[:4]))}, …", "classification needs strings or whole numbers")]
    if len(found) < 2 and config.mode == "train":
        return [Problem("dataset.train", config.dataset.train, f"only one label in the training split: {found}", "classification needs two or more")]
    config.dataset.label_names = label_names(found, config.dataset.label_names)
    return []


def _unseen(config: RunConfig, scans: dict[str, SplitScan]) -> list[Problem]:
    known = LabelMap(config.dataset.label_names or [])
    problems = []
    for split, scan in scans.items():
        for encoded, count in scan.labels.items():
            value = json.loads(encoded)
            if value not in known:
                problems.append(
                    Problem(
                        f"dataset.{split}",
                        getattr(config.dataset, split),
                        f"label {value!r} ({count} rows of {split}) is not among the training labels {', '.join(known.names)}",
                        "remove the rows or add them to the training split",
                    )
                )
        if scan.labels and all(as_label(json.loads(encoded)) == HIDDEN for encoded in scan.labels):
            problems.append(Problem(f"dataset.{split}", getattr(config.dataset, split), "all labels are hidden (-1): this split is predicted, not scored", "", "notice"))
    return problems
