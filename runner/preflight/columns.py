"""Columns that the recipe reads: whether every split has them, and whether they hold text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from runner import paths
from runner.config.schema import RunConfig
from runner.data.files import header
from runner.data.reading import Findings, Reading
from runner.data.scan import SplitScan
from runner.data.source import split_paths
from runner.data.values import CONVERSATION, EMPTY, LIST, NUMBER, Needs
from runner.errors import Problem, nearest
from runner.preflight.findings import names, on_split, override, places, rows_in
from runner.recipe import Recipe

COMPARED = 1000  # names that are compared with the one asked for; more would take seconds
# Other names that people give to what recipes call by the first.
_ALSO = {
    "label": ("labels", "class", "target", "category", "gold", "gold_label", "y", "intent", "sentiment"),
    "sentence1": ("sentence", "text", "text1", "text_a", "sentence_a", "question1", "premise", "question", "content"),
    "sentence2": ("text2", "text_b", "sentence_b", "question2", "hypothesis"),
    "text": ("content", "document", "body", "sentence"),
    "texts": ("text", "dialogue", "dialog", "source", "input", "prompt", "question", "article", "document"),
    "labels": ("label", "target", "response", "reply", "output", "answer", "completion", "summary"),
}


def column_problems(config: RunConfig, recipe: Recipe, scans: Mapping[str, SplitScan]) -> list[Problem]:
    """Missing columns, names that stand twice, and splits or files that differ in the columns the recipe reads."""
    problems = _one_column_twice(recipe)
    for split, scan in scans.items():
        problems += _names(config, split, scan)
    if recipe.checks_rows:
        return problems
    for name in recipe.columns:
        problems += _column(recipe, name, scans)
    for split, scan in scans.items():
        problems += _other_files(config, recipe, split, scan)
    return problems


def _names(config: RunConfig, split: str, scan: SplitScan) -> list[Problem]:
    problems = []
    padded = [name for name in scan.raw_columns if name != name.strip()]
    if padded:
        why = f"blanks around column names were trimmed: {names(padded)}"
        problems.append(on_split(config, split, why, "", "notice"))
    twice = sorted(name for name, count in Counter(scan.columns).items() if count > 1)
    if twice:
        why = f"two columns have the same name: {names(twice)}"
        problems.append(on_split(config, split, why, "rename one of them in the file"))
    return problems


def _has(scan: SplitScan, column: str | None) -> bool:
    return column is not None and (column in scan.columns or column in scan.kinds)


def _column(recipe: Recipe, name: str, scans: Mapping[str, SplitScan]) -> list[Problem]:
    """One column of the recipe, over all splits: one finding, with an override that fits every split that lacks it."""
    column, key = recipe.column(name), f"dataset.columns.{name}"
    optional = name in recipe.optional_columns
    if column is None:
        first = next(iter(scans.values()), None)
        fix = f"set {key}=COLUMN, one of {names(first.columns)}" if first else f"set {key}=COLUMN"
        return [] if optional else [Problem(key, "null", "the recipe needs this column", fix)]
    lacking = {
        split: scan
        for split, scan in scans.items()
        if not _has(scan, column) and not (split == "test" and name in (recipe.label_column, *recipe.target_columns))
    }
    if not lacking:
        return []
    having = [split for split, scan in scans.items() if _has(scan, column)]
    if having:
        return [_in_some_splits(recipe, name, having, lacking)]
    differs_in_case = any(_same_but_for_case(column, scan) for scan in lacking.values())
    if optional and name not in recipe.config.dataset.columns and not differs_in_case:
        fitting = _common(lacking, lambda scan: _guess(recipe, name, column, scan))
        why = f"the {_splits(lacking)} no column {column!r}, the run goes without it"
        fix = f"set {override(key, fitting) if fitting else f'{key}=COLUMN'}, or {key}=null to say so"
        return [Problem(key, None, why, fix, "notice")]
    return [_absent(recipe, name, lacking)]


def _splits(scans: Mapping[str, SplitScan]) -> str:
    """`train split has`, `train and validation splits have`."""
    return f"{' and '.join(scans)} {'splits have' if len(scans) > 1 else 'split has'}"


def _found(scans: Mapping[str, SplitScan]) -> str:
    """The columns there are, by split where they differ."""
    by_split = {split: names(scan.raw_columns) for split, scan in scans.items()}
    if len(set(by_split.values())) == 1:
        return next(iter(by_split.values()))
    return "; ".join(f"{split}: {found}" for split, found in by_split.items())


def _common(scans: Mapping[str, SplitScan], choose: Callable[[SplitScan], str | None]) -> str | None:
    """The column that is chosen in each of the splits; None where they differ."""
    chosen = {choose(scan) for scan in scans.values()}
    return chosen.pop() if len(chosen) == 1 else None


def _in_some_splits(recipe: Recipe, name: str, having: list[str], lacking: Mapping[str, SplitScan]) -> Problem:
    """Trained on one thing, judged on another; no override gives two splits two names for one column."""
    column, key = recipe.column(name) or name, f"dataset.columns.{name}"
    why = f"in {' and '.join(having)} there is this column, in {' and '.join(lacking)} there is not: {_found(lacking)}"
    fix = "give all splits the same columns"
    chat = _common(lacking, _chat_column)
    if chat is not None:
        fix += f" ({chat!r} holds conversations, which recipe=chat_sft reads)"
    alike = _common(lacking, lambda scan: _same_but_for_case(column, scan) or _guess(recipe, name, column, scan))
    if alike is not None:
        fix += f": rename {alike!r} of {' and '.join(lacking)} to {column!r}"
    if name in recipe.optional_columns:
        fix += f", or go without it everywhere: {key}=null"
    return Problem(key, column, why, fix)


def _absent(recipe: Recipe, name: str, lacking: Mapping[str, SplitScan]) -> Problem:
    column, key = recipe.column(name) or name, f"dataset.columns.{name}"
    why = f"the {_splits(lacking)} no such column: {_found(lacking)}"
    chat = _common(lacking, _chat_column)
    if chat is not None and (paths.conf_dir() / "recipe" / "chat_sft.yaml").is_file():
        return Problem(key, column, why, f"{chat!r} holds conversations, which recipe=chat_sft reads")
    same = _common(lacking, lambda scan: _same_but_for_case(column, scan))
    if same is not None:
        why += f"; {same!r} differs in case, blanks or invisible characters only"
        fix = f"set {override(key, same)}" if same.isprintable() else f"rename it to {column!r} in the file"
        return Problem(key, column, why, fix)
    guess = _common(lacking, lambda scan: _guess(recipe, name, column, scan))
    if guess is None and all(_looks_like_a_row(scan) for scan in lacking.values()):
        return Problem(key, column, why, "write a line with the names of the columns first: this looks like a row")
    return Problem(key, column, why, f"set {override(key, guess)}" if guess else f"set {key}=COLUMN")


def _looks_like_a_row(scan: SplitScan) -> bool:
    """A file without a header: one of its `names` is a number, or as long as a sentence."""
    return any(name.strip().lstrip("-").replace(".", "", 1).isdigit() or len(name.split()) > 4 for name in scan.columns)


def _chat_column(scan: SplitScan) -> str | None:
    return next((name for name, kinds in scan.kinds.items() if CONVERSATION in kinds), None)


def _folded(name: str) -> str:
    visible = "".join(character for character in name.casefold().replace("_", " ") if character.isprintable())
    return "".join(visible.split())


def _same_but_for_case(column: str, scan: SplitScan) -> str | None:
    folded = _folded(column)
    return next((name for name in scan.columns if name != column and _folded(name) == folded), None)


def _guess(recipe: Recipe, name: str, column: str, scan: SplitScan) -> str | None:
    """A column whose name and kind both fit and that has no other part; None rather than a wrong one."""
    taken = {recipe.column(other) for other in recipe.columns if other != name}
    fitting = [item for item in scan.columns if item not in taken and _kind_fits(recipe, name, item, scan)]
    by_name = {item.casefold(): item for item in fitting}
    known = next((by_name[other] for other in _ALSO.get(name, ()) if other in by_name), None)
    return known or nearest(column, fitting[:COMPARED], cutoff=0.75)


def _kind_fits(recipe: Recipe, name: str, column: str, scan: SplitScan) -> bool:
    kinds = scan.kinds.get(column, {})
    if name != recipe.label_column:
        odd = kinds.keys() - {EMPTY, NUMBER, *({LIST} if name in recipe.may_be_lists else set())}
        return not odd and kinds.get(NUMBER, Findings()).count < scan.rows
    different = scan.distinct.get(column, 0)
    return 2 <= different <= recipe.config.dataset.max_classes and different <= max(2, scan.rows // 2)


def _one_column_twice(recipe: Recipe) -> list[Problem]:
    """The label among the texts would be learned from itself."""
    if recipe.label_column is None:
        return []
    label = recipe.column(recipe.label_column)
    why, label_key = "this is the column of the labels as well", f"dataset.columns.{recipe.label_column}"
    return [
        Problem(f"dataset.columns.{name}", label, why, f"set dataset.columns.{name}=COLUMN or {label_key}=COLUMN")
        for name in recipe.columns
        if name != recipe.label_column and label is not None and recipe.column(name) == label
    ]


def _other_files(config: RunConfig, recipe: Recipe, split: str, scan: SplitScan) -> list[Problem]:
    """Further files of a split must have the columns of the first that the recipe reads."""
    problems = []
    used = {recipe.column(name) for name in recipe.columns} & set(scan.columns)
    for path in split_paths(config.dataset, split)[1:]:
        absent = sorted(
            str(name) for name in used - {name.strip() for name in header(path, Reading.of(config.dataset))}
        )
        if absent:
            why = f"this file lacks columns that the split's first file has: {names(absent)}"
            problems.append(Problem(f"dataset.{split}", path, why, "give all files of a split the same columns"))
    return problems


def text_problems(config: RunConfig, recipe: Recipe, scans: Mapping[str, SplitScan]) -> list[Problem]:
    """Values that are no text where text is needed, and what is read as text without being any."""
    problems = []
    for split, scan in scans.items():
        problems += _wrong_rows(config, split, scan)
        if recipe.checks_rows:
            continue
        needs = Needs.of(recipe, split)
        for column in needs.texts:
            for kind, found in scan.kinds.get(column, {}).items():
                problems += _text(config, recipe, split, scan, needs, column, kind, found)
    return problems


def _wrong_rows(config: RunConfig, split: str, scan: SplitScan) -> list[Problem]:
    wrong = scan.wrong
    if not wrong.count:
        return []
    more = f" ({wrong.count - 1:,} more rows are wrong: {places(Findings(wrong.count - 1, wrong.first[1:]))})"
    why = f"{wrong.first[0]}{more * (wrong.count > 1)}"
    return [on_split(config, split, why, _fix_rows(split))]


def _fix_rows(split: str) -> str:
    return "fix the rows" + (", or leave them out with dataset.drop_bad_rows=true" if split != "test" else "")


def _text(
    config: RunConfig,
    recipe: Recipe,
    split: str,
    scan: SplitScan,
    needs: Needs,
    column: str,
    kind: str,
    found: Findings,
) -> list[Problem]:
    where = rows_in(found, scan.rows)
    if kind == EMPTY and needs.allows(column, kind):
        if not recipe.keeps_rows or split == "test":
            return []  # rows are joined to one stream
        why = (
            f"column {column!r} has no text in {where}: the empty text is "
            f"{'learned' * (split == 'train') or 'compared with'}"
        )
        return [on_split(config, split, why, "", "notice")]
    if kind == NUMBER:
        return [on_split(config, split, f"column {column!r} holds numbers, read as text, in {where}", "", "notice")]
    if needs.allows(column, kind):
        return []
    if kind == EMPTY:
        return [on_split(config, split, f"column {column!r} has no text in {where}", _fix_rows(split))]
    why, fix = f"column {column!r} holds {kind} where text is needed in {where}", _fix_rows(split)
    if kind == CONVERSATION:
        fix = "a recipe for conversations reads them (recipe=chat_sft)"
    elif kind == LIST:  # a recipe of the user's may read lists
        fix = f"write it as text, or say so in {config.recipe.file}: may_be_lists"
    return [on_split(config, split, why, fix)]
