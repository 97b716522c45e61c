"""The data set, checked before any rank starts: files, columns, labels, missing text."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from runner import paths
from runner.config.schema import RunConfig
from runner.data.files import FORMATS, UnreadableFile, header
from runner.data.labels import HIDDEN, LabelMap, as_label, distinct, label_names, names_fit
from runner.data.scan import LIST, SplitScan, scan_split, split_paths
from runner.errors import Problem, nearest
from runner.recipe import Recipe

SPLITS = ("train", "validation", "test")


def check_data(config: RunConfig, recipe: Recipe, typed: Collection[str] = ()) -> list[Problem]:
    """Problems of the data set's keys, and of local and bundled data; fills in `dataset.rows` and
    `dataset.label_names`.

    Args:
        typed: keys of the command line; a data set's own file may serve other recipes as well.
    """
    problems = _roles(config, recipe, typed) + _given_names(config, recipe, typed)
    if config.dataset.source == "hub":
        return problems
    needed = ("validation",) if config.mode == "evaluate" else ("train", "validation")
    problems += [_missing_split(split) for split in needed if getattr(config.dataset, split) is None]
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


def _given_names(config: RunConfig, recipe: Recipe, typed: Collection[str]) -> list[Problem]:
    names = config.dataset.label_names or []
    if recipe.label_column is None:
        unused = bool(names) and "dataset.label_names" in typed
        return (
            [
                Problem(
                    "dataset.label_names",
                    _listed(names),
                    f"this has no effect: recipe={config.recipe.name} has no class labels",
                    "leave it out",
                )
            ]
            if unused
            else []
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    return (
        [
            Problem(
                "dataset.label_names",
                _listed(names),
                f"a name stands there twice: {', '.join(map(repr, twice))}",
                "give each class a name of its own",
            )
        ]
        if twice
        else []
    )


def _listed(names: list[str]) -> str:
    return f"[{','.join(names)}]"


def _missing_split(split: str) -> Problem:
    return Problem(f"dataset.{split}", None, "this split is needed", f"add dataset.{split}=FILE")


def _scan(config: RunConfig, recipe: Recipe, split: str) -> SplitScan | Problem | None:
    if getattr(config.dataset, split) is None or (
        config.mode == "evaluate" and split == "train" and recipe.label_column is None
    ):
        return None
    files = split_paths(config.dataset, split)
    absent = [path for path in files if not path.is_file()]
    if absent:
        why = (
            "no such file"
            if not absent[0].exists()
            else "this is a folder, not a file"
            if absent[0].is_dir()
            else "is no regular file"
        )
        return Problem(
            f"dataset.{split}",
            getattr(config.dataset, split),
            f"{why}: {absent[0]}",
            f"set dataset.{split}=FILE" + _near_file(absent[0]),
        )
    label = recipe.column(recipe.label_column) if recipe.label_column else None
    try:
        limit = {"train": config.dataset.max_train_rows, "validation": config.dataset.max_validation_rows}.get(split)
        scan = scan_split(files, label, paths.cache_dir(config.cache_dir), limit)
    except UnreadableFile as error:
        return Problem(f"dataset.{split}", getattr(config.dataset, split), str(error), "fix the file")
    if scan.rows == 0:
        return Problem(
            f"dataset.{split}", getattr(config.dataset, split), "this split has no rows", f"set dataset.{split}=FILE"
        )
    return scan


def _near_file(path: Path) -> str:
    if path.is_dir():
        inside = sorted(item.name for item in path.iterdir() if item.suffix.lower() in FORMATS)
        return f" (it holds {', '.join(inside[:4])})" if inside else ""
    siblings = [item.name for item in path.parent.iterdir() if item.is_file()] if path.parent.is_dir() else []
    near = nearest(path.name, siblings)
    return f" (did you mean {path.parent / near}?)" if near else ""


def _columns(config: RunConfig, recipe: Recipe, split: str, scan: SplitScan) -> list[Problem]:
    problems = []
    padded = [name for name in scan.raw_columns if name != name.strip()]
    if padded:
        problems.append(
            Problem(
                f"dataset.{split}",
                getattr(config.dataset, split),
                f"blanks around column names were trimmed: {', '.join(map(repr, padded))}",
                "",
                "notice",
            )
        )
    twice = sorted({name for name in scan.columns if scan.columns.count(name) > 1})
    if twice:
        problems.append(
            Problem(
                f"dataset.{split}",
                getattr(config.dataset, split),
                f"two columns have the same name: {', '.join(map(repr, twice))}",
                "rename one of them in the file",
            )
        )
    for name in recipe.columns:
        column = recipe.column(name)
        optional = name in recipe.optional_columns or (split == "test" and name == recipe.label_column)
        if column is None and not optional:
            problems.append(
                Problem(
                    f"dataset.columns.{name}",
                    "null",
                    "the recipe needs this column",
                    f"set dataset.columns.{name}=COLUMN",
                )
            )
        elif column is not None and column not in scan.columns and column not in scan.empty:
            assumed = optional and name not in config.dataset.columns
            problems.append(_without_column(split, name) if assumed else _absent_column(split, name, column, scan))
    return problems


def _one_column_twice(recipe: Recipe) -> list[Problem]:
    """The label among the texts would be learned from itself."""
    if recipe.label_column is None:
        return []
    label = recipe.column(recipe.label_column)
    texts = [
        name
        for name in recipe.columns
        if name != recipe.label_column and label is not None and recipe.column(name) == label
    ]
    return [
        Problem(
            f"dataset.columns.{name}",
            label,
            "this is the column of the labels as well",
            f"set dataset.columns.{name}=COLUMN or dataset.columns.{recipe.label_column}=COLUMN",
        )
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
    near = nearest(column, scan.columns, cutoff=0.3)
    found = ", ".join(repr(item) for item in scan.raw_columns)
    return Problem(
        f"dataset.columns.{name}",
        column,
        f"the {split} split has no such column; it has {found}",
        f"set dataset.columns.{name}={near or 'COLUMN'}",
    )


def _without_column(split: str, name: str) -> Problem:
    return Problem(
        f"dataset.columns.{name}",
        None,
        f"the {split} split has no column {name!r}, the run goes without it",
        f"set dataset.columns.{name}=COLUMN, or null to say so",
        "notice",
    )


def _texts(config: RunConfig, recipe: Recipe, scans: dict[str, SplitScan]) -> list[Problem]:
    problems = []
    for split, scan in scans.items():
        for name in recipe.columns:
            column = recipe.column(name)
            if name == recipe.label_column or column is None:
                continue
            if column in scan.empty and name not in recipe.may_be_empty:
                problems.append(
                    _in_row(
                        config,
                        split,
                        scan,
                        f"column {column!r} has no text",
                        scan.empty[column],
                        "fill it in or remove the row",
                    )
                )
            for kind, row in scan.odd.get(column, {}).items():
                if kind != LIST or name not in recipe.may_be_lists:
                    own = (
                        f", or say so in {config.recipe.file}: may_be_lists" if kind == LIST else ""
                    )  # a recipe of the user's may read lists
                    problems.append(
                        _in_row(
                            config,
                            split,
                            scan,
                            f"column {column!r} holds {kind} where text is needed",
                            row,
                            f"write it as text or remove the row{own}",
                        )
                    )
    return problems


def _in_row(config: RunConfig, split: str, scan: SplitScan, what: str, row: int, fix: str) -> Problem:
    place = scan.place(split_paths(config.dataset, split), row)
    return Problem(f"dataset.{split}", getattr(config.dataset, split), f"{what} in {place}", fix)


def _labels(config: RunConfig, recipe: Recipe, scans: dict[str, SplitScan]) -> list[Problem]:
    """One label map, from the training split; every other label must be in it."""
    if recipe.label_column is None:
        return []
    column = recipe.column(recipe.label_column)
    problems = [
        _in_row(
            config, split, scan, f"column {column!r} has no label", scan.empty[column], "fill it in or remove the row"
        )
        for split, scan in scans.items()
        if column in scan.empty and split != "test"
    ]
    odd = [
        _in_row(
            config,
            split,
            scan,
            f"column {column!r} holds {kind} where a class label is needed",
            row,
            "write it as text or a whole number",
        )
        for split, scan in scans.items()
        for kind, row in scan.odd.get(column or "", {}).items()
    ]
    if odd:
        return problems + odd
    if "train" in scans:
        problems += _one_label_map(config, scans)
    elif not config.dataset.label_names:
        problems.append(
            Problem(
                "dataset.label_names",
                None,
                "without a training split the class names must be given",
                "add dataset.label_names=[NAME,NAME]",
            )
        )
    return problems if problems and problems[-1].severity == "error" else problems + _unseen(config, scans)


def _one_label_map(config: RunConfig, scans: dict[str, SplitScan]) -> list[Problem]:
    found = distinct(scans["train"].labels)
    if any(isinstance(value, float) for value in found) or len(found) > 1000:
        return [
            Problem(
                "dataset.train",
                config.dataset.train,
                f"labels are no classes: {', '.join(map(str, found[:4]))}, …",
                "classification needs strings or whole numbers",
            )
        ]
    if len(found) < 2 and config.mode == "train":
        return [
            Problem(
                "dataset.train",
                config.dataset.train,
                f"only one label in the training split: {found}",
                "classification needs two or more",
            )
        ]
    names = config.dataset.label_names
    if names and not names_fit(found, names):
        why = (
            "these names do not fit the labels of the training split: "
            f"{', '.join(map(str, found[:6]))}{', …' if len(found) > 6 else ''}"
        )
        return [
            Problem(
                "dataset.label_names",
                _listed(names),
                why,
                "name every label, or every id from 0 on, or leave it to the data with dataset.label_names=null",
            )
        ]
    config.dataset.label_names = label_names(found, names)
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
                        f"label {value!r} ({count} rows of {split}) is not among the training labels "
                        f"{', '.join(known.names)}",
                        "remove the rows or add them to the training split",
                    )
                )
        if scan.labels and all(as_label(json.loads(encoded)) == HIDDEN for encoded in scan.labels):
            problems.append(
                Problem(
                    f"dataset.{split}",
                    getattr(config.dataset, split),
                    "all labels are hidden (-1): this split is predicted, not scored",
                    "",
                    "notice",
                )
            )
    return problems
