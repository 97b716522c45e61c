"""Class labels: one map, from the training split, that every other split must fit."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from runner.config.schema import RunConfig
from runner.data.labels import HIDDEN, LabelMap, as_label, distinct, label_names, names_fit
from runner.data.scan import SplitScan
from runner.data.values import EMPTY
from runner.errors import Problem
from runner.preflight.findings import names, on_split, override_list, rows_in, shortened, within
from runner.recipe import Recipe

_NO_CLASSES = "classification needs names or whole numbers; choose the column with dataset.columns.label=COLUMN"


def given_names(config: RunConfig, recipe: Recipe, typed: Collection[str]) -> list[Problem]:
    """Names of classes where the recipe has none, or one of them twice."""
    given, key = config.dataset.label_names or [], "dataset.label_names"
    if recipe.label_column is None:
        why = f"this has no effect: recipe={config.recipe.name} has no class labels"
        return [Problem(key, _listed(given), why, "leave it out")] if given and key in typed else []
    twice = sorted({name for name in given if given.count(name) > 1})
    why = f"a name stands there twice: {', '.join(map(repr, twice))}"
    return [Problem(key, _listed(given), why, "give each class a name of its own")] if twice else []


def label_problems(config: RunConfig, recipe: Recipe, scans: Mapping[str, SplitScan]) -> list[Problem]:
    """What is wrong with the labels; fills in `dataset.label_names` where they are right."""
    if recipe.label_column is None:
        return []
    column = recipe.column(recipe.label_column) or recipe.label_column
    problems = [problem for split, scan in scans.items() for problem in _values(config, split, scan, column)]
    if any(problem.severity == "error" for problem in problems):
        return problems
    if "train" in scans:
        wrong = _no_classes(config, column, distinct(scans["train"].labels), scans["train"].rows, recipe.label_lists)
        problems += [wrong] if wrong else _which_number(config, scans) or _one_label_map(config, scans["train"])
    elif not config.dataset.label_names:
        why = "without a training split the class names must be given"
        problems.append(Problem("dataset.label_names", None, why, "add dataset.label_names=[NAME,NAME]"))
    if any(problem.severity == "error" for problem in problems):
        return problems
    return problems + _unseen(config, scans) + _hidden(config, scans)


def _values(config: RunConfig, split: str, scan: SplitScan, column: str) -> list[Problem]:
    """Labels that are missing, or no class, or were trimmed."""
    problems = []
    drop = ", or leave them out with dataset.drop_bad_rows=true" if split != "test" else ""
    for kind, found in scan.kinds.get(column, {}).items():
        where = rows_in(found, scan.rows)
        if kind == EMPTY:
            why = f"column {column!r} has no label in {where}"
            if split != "test":
                problems.append(on_split(config, split, why, f"fill it in or remove the row{drop}"))
            elif found.count < scan.rows:
                problems.append(on_split(config, split, f"{why}: scores are over the others", "", "warning"))
        else:
            why = f"column {column!r} holds {kind} where a class label is needed in {where}"
            problems.append(on_split(config, split, why, f"write it as text or a whole number{drop}"))
    values = [json.loads(text) for text in scan.labels]
    padded = [value for value in values if isinstance(value, str) and value != value.strip()]
    if padded:
        problems.append(on_split(config, split, f"blanks around labels were trimmed: {names(padded, 4)}", "", "notice"))
    folded: dict[str, set[str]] = {}
    for value in values:
        if isinstance(value, str):
            folded.setdefault(value.strip().casefold(), set()).add(value.strip())
    alike = [sorted(same) for same in folded.values() if len(same) > 1]
    if alike:
        why = f"labels that differ in case only are different classes: {names(alike[0])}"
        problems.append(on_split(config, split, why, "", "warning"))
    return problems


def _one_label_map(config: RunConfig, train: SplitScan) -> list[Problem]:
    found = distinct(train.labels)
    hidden = _hidden_rows(train)
    if hidden:
        why = (
            f"the label -1 in {within(hidden, train.rows)} of the training split means that the class is not published"
        )
        return [on_split(config, "train", why, "remove these rows, or leave them out with dataset.drop_bad_rows=true")]
    if len(found) < 2 and config.mode == "train":
        only = names([str(value) for value in found])
        why = f"only one label in the training split: {only}"
        return [on_split(config, "train", why, "classification needs two or more")]
    given = config.dataset.label_names
    if given and not names_fit(found, given):
        why = f"these names do not fit the labels of the training split: {_plain(found)}"
        fix = "name every label, or every id from 0 on, or leave it to the data with dataset.label_names=null"
        return [Problem("dataset.label_names", _listed(given), why, fix)]
    names_by_id = label_names(found, given)
    config.dataset.label_names, known = names_by_id, LabelMap(names_by_id)
    counts = dict.fromkeys(names_by_id, 0)
    for encoded, count in train.labels.items():
        counts[names_by_id[known.id_of(json.loads(encoded))]] += count
    config.dataset.label_counts = counts
    return []


def _no_classes(config: RunConfig, column: str, found: list[object], rows: int, lists: bool) -> Problem | None:
    """Numbers on a scale, an id or a text for each row, or more classes than anyone means by accident."""
    shown = ", ".join(shortened(str(value), 40) for value in found[:4])
    if any(isinstance(value, float) for value in found):
        return on_split(config, "train", f"labels are no classes, they are numbers on a scale: {shown}, …", _NO_CLASSES)
    if not lists and len(found) > 2 and len(found) > max(rows // 2, 2) and (len(found) == rows or rows >= 20):
        why = (
            f"labels are no classes: column {column!r} holds {len(found):,} different values in {rows:,} rows "
            f"({shown}, …)"
        )
        return on_split(config, "train", why, _NO_CLASSES)
    most = config.dataset.max_classes
    if len(found) > most:
        why = (
            f"column {column!r} holds {len(found):,} different labels ({shown}, …), more than "
            f"dataset.max_classes={most}"
        )
        return on_split(config, "train", why, f"if these are classes, set dataset.max_classes={len(found)}")
    return None


def _which_number(config: RunConfig, scans: Mapping[str, SplitScan]) -> list[Problem]:
    """Names in training, whole numbers elsewhere: which number is which name is for the user to say."""
    if config.dataset.label_names:
        return []
    trained = distinct(scans["train"].labels)
    if not trained or not all(isinstance(value, str) for value in trained):
        return []
    problems = []
    for split, scan in scans.items():
        numbers = [value for value in distinct(scan.labels) if isinstance(value, int)]
        if split != "train" and numbers:
            of_train = names([str(value) for value in trained], 6)
            why = (
                f"its labels are numbers ({', '.join(map(str, numbers[:6]))}), those of the training split names "
                f"({of_train})"
            )
            order = override_list("dataset.label_names", [str(value) for value in trained][:20])
            fix = f"name the classes in the order of their numbers, for example {order}"
            problems.append(on_split(config, split, why, fix))
    return problems


def _unseen(config: RunConfig, scans: Mapping[str, SplitScan]) -> list[Problem]:
    known = LabelMap(config.dataset.label_names or [])
    problems = []
    for split, scan in scans.items():
        for encoded, count in scan.labels.items():
            value = json.loads(encoded)
            if value not in known:
                trained = _plain(list(known.names))
                why = (
                    f"label {shortened(repr(value))} ({count} rows of {split}) is not among the training labels "
                    f"{trained}"
                )
                problems.append(on_split(config, split, why, "remove the rows or add them to the training split"))
    return problems[:10]


def _hidden_rows(scan: SplitScan) -> int:
    return sum(count for text, count in scan.labels.items() if as_label(json.loads(text)) == HIDDEN)


def _hidden(config: RunConfig, scans: Mapping[str, SplitScan]) -> list[Problem]:
    """Rows whose class is not published are predicted, not scored."""
    problems = []
    for split, scan in scans.items():
        hidden = _hidden_rows(scan)
        if hidden and hidden == scan.rows:
            why = "all labels are hidden (-1): this split is predicted, not scored"
            problems.append(on_split(config, split, why, "", "notice"))
        elif hidden:
            why = (
                f"the label is hidden (-1) in {within(hidden, scan.rows)}: scores are over the other "
                f"{scan.rows - hidden:,}"
            )
            problems.append(on_split(config, split, why, "", "warning"))
    return problems


def _plain(found: list[object], most: int = 6) -> str:
    return ", ".join(shortened(str(value), 40) for value in found[:most]) + ", …" * (len(found) > most)


def _listed(items: list[str]) -> str:
    return f"[{','.join(items)}]"
