"""What a value in a data row is, and which of them a recipe can read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runner.data.labels import HIDDEN, as_label
from runner.data.reading import Row
from runner.recipe import Recipe

EMPTY = "nothing"  # null, NaN, a missing key, or text of blanks only
LIST = "a list"  # of texts
OTHER_LIST = "a list of other things than texts"
CONVERSATION = "a list of messages"  # objects with role and content, or from and value
NUMBER = "a number"
SURROGATE = "text with half a character (a lone surrogate such as \\ud800)"
HIDDEN_LABEL = "the hidden label -1"


def kind_of(value: object, label: bool = False) -> str | None:
    """What a value is, where it is no plain text; None where it is.

    Args:
        label: whether it has to be a class: then text, whole numbers and truth values are plain.
    """
    if isinstance(value, str):
        if not value or value.isspace():
            return EMPTY
        return None if value.isascii() or _encodes(value) else SURROGATE
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return EMPTY
    if isinstance(value, bool):
        return None if label else "a truth value (true or false)"
    if isinstance(value, (int, float)):
        return _kind_of_number(value, label)
    if isinstance(value, (list, tuple)):
        return _kind_of_list(value)
    if isinstance(value, dict):
        return "an object"
    return "bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"


def _kind_of_number(value: float, label: bool) -> str | None:
    if not math.isfinite(value):
        return "a number that is not finite"
    return None if label else NUMBER


def _kind_of_list(parts: list[Any] | tuple[Any, ...]) -> str:
    if parts and all(isinstance(part, dict) and ({"role", "from"} & part.keys()) for part in parts):
        return CONVERSATION
    plain = all(isinstance(part, (str, int, float)) and kind_of(part) in (None, NUMBER, EMPTY) for part in parts)
    return LIST if plain else OTHER_LIST


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True)
class Needs:
    """What a recipe needs of each row of a split, in the data set's own column names.

    Attributes:
        texts: columns that are read as text.
        may_be_empty: of those, the ones that may hold nothing.
        may_be_lists: of those, the ones that may hold a list of texts.
        optional: of those, the ones that a data set may lack altogether.
        label: the column of class labels.
        labels_of: the labels in a value of it, where a row has a list of them.
        targets: columns that only `row_problem` checks.
        judged: whether a row without a label is of no use (the training split).
        row_problem: the recipe's own check of a whole row.
        whole_rows: whether that is in place of the columns' checks.
    """

    texts: tuple[str, ...]
    may_be_empty: tuple[str, ...] = ()
    may_be_lists: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    label: str | None = None
    judged: bool = False
    row_problem: Callable[[Row], str | None] | None = None
    whole_rows: bool = False
    labels_of: Callable[[Any], list[Any]] | None = None
    targets: tuple[str, ...] = ()

    @classmethod
    def of(cls, recipe: Recipe, split: str) -> Needs:
        """Of a run's recipe."""

        def mapped(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(column for name in names if (column := recipe.column(name)) is not None)

        label = recipe.column(recipe.label_column) if recipe.label_column else None
        return cls(
            mapped(tuple(name for name in recipe.columns if name not in (recipe.label_column, *recipe.target_columns))),
            mapped(recipe.may_be_empty),
            mapped(recipe.may_be_lists),
            mapped(recipe.optional_columns),
            label,
            split == "train",
            recipe.row_problem if type(recipe).row_problem is not Recipe.row_problem else None,
            recipe.checks_rows,
            recipe.labels_of if recipe.label_lists else None,
            mapped(recipe.target_columns),
        )

    @cached_property
    def key(self) -> list[object]:
        """What tells these needs from others, for the names of kept answers."""
        parts = [self.texts, self.may_be_empty, self.may_be_lists, self.optional, self.label, self.judged, self.targets]
        return [*parts, self.labels_of is not None]

    def fault(self, row: Row) -> str | None:
        """Why a row is of no use, in words; None for a good one."""
        own = self.row_problem(row) if self.row_problem is not None else None
        if own is not None or self.whole_rows:
            return own
        for column in self.texts:
            if column not in row and column in self.optional:
                continue
            kind = kind_of(row.get(column))
            if kind is not None and not self.allows(column, kind):
                return f"{column!r} holds {kind}"
        if self.label is None:
            return None
        kind = self.label_kind(row.get(self.label))
        if kind is None and self.judged and self.labels_of is None and as_label(row[self.label]) == HIDDEN:
            kind = HIDDEN_LABEL
        return None if kind is None else f"{self.label!r} holds {kind}"

    def labels(self, value: object) -> list[object]:
        """The class labels in a value of the label column."""
        return [value] if self.labels_of is None or value is None else self.labels_of(value)

    def label_kind(self, value: object) -> str | None:
        """Like `kind_of`, of a value of the label column."""
        kinds = (kind_of(label, label=True) for label in self.labels(value))
        return next((kind for kind in kinds if kind is not None), None)

    def allows(self, column: str, kind: str) -> bool:
        """Whether a text column may hold a value of this kind."""
        if kind == EMPTY:
            return column in self.may_be_empty
        return kind == NUMBER or (kind == LIST and column in self.may_be_lists)
