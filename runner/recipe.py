"""What a recipe is: the small class a task fills in. The training loop is not in it.

A recipe file in `recipes/` (or in `./recipes` of the current folder) defines one subclass of `Recipe`.
Importing it must be cheap: torch and transformers are imported inside the methods that need them.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from runner import paths
from runner.config.fields import integer_text, no_truth_value
from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

Batch = dict[str, "torch.Tensor"]


class Options(BaseModel):
    """Base of a recipe's own keys, set with `task.KEY=VALUE`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _as_in_the_schema(cls, value: object, info: ValidationInfo) -> object:
        """Numbers and text are read as everywhere else in a configuration."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        kinds = get_args(annotation) or (annotation,)
        if bool not in kinds and (int in kinds or float in kinds):
            return no_truth_value(value)
        return integer_text(value) if str in kinds else value


class Recipe:
    """A task. Subclasses set the class attributes and fill in the hooks."""

    Options: ClassVar[type[Options]] = Options
    auto_class: ClassVar[str] = "AutoModel"  # transformers class that builds the model
    columns: ClassVar[tuple[str, ...]] = ()  # columns the recipe reads
    optional_columns: ClassVar[tuple[str, ...]] = ()  # of those, the ones a data set may lack
    may_be_empty: ClassVar[tuple[str, ...]] = ()  # of those, the ones that may hold empty text
    may_be_lists: ClassVar[tuple[str, ...]] = ()  # of those, the ones that may hold a list of texts
    label_column: ClassVar[str | None] = None  # of those, the one with class labels
    label_lists: ClassVar[bool] = False  # whether a row has a list of class labels: `labels_of` reads it
    target_columns: ClassVar[
        tuple[str, ...]
    ] = ()  # of those, the ones `row_problem` checks; a test split may lack them
    metrics: ClassVar[tuple[str, ...]] = ()  # names that `score` returns
    libraries: ClassVar[tuple[str, ...]] = ()  # packages that `score` imports, of the extra `tasks`
    checks_rows: ClassVar[bool] = False  # whether rows have several layouts: only `row_problem` checks them
    keeps_rows: ClassVar[bool] = True  # whether one row gives one training row (False: texts are cut into blocks)

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.options: Any = parse_options(type(self), config.task)

    def column(self, name: str) -> str | None:
        """The data set's own name of a column the recipe reads; None where it is mapped to nothing."""
        return self.config.dataset.columns.get(name, name)

    def values(self, rows: dict[str, list[Any]], name: str) -> list[Any]:
        """What some rows hold in the column the recipe calls `name`; None for each where the data set has no such
        column.
        """
        column = self.column(name)
        if column is not None and column in rows:
            return rows[column]
        return [None] * len(next(iter(rows.values()), []))

    def texts(self, rows: dict[str, list[Any]], name: str) -> list[Any]:
        """Like `values`, with numbers as the text they are in a csv."""
        return [
            value if value is None or isinstance(value, (list, dict)) else str(value)
            for value in self.values(rows, name)
        ]

    def max_positions(self) -> dict[str, int]:
        """Longest sequences the model sees with these options: key of `task` → tokens."""
        raise NotImplementedError

    def length_problems(self, limit: int) -> list[Problem]:
        """Options that ask for more positions than the model has.

        Args:
            limit: positions of the model, in tokens.
        """
        return [
            Problem(
                f"task.{key}",
                tokens,
                f"model={self.config.model.name} has {limit} positions",
                f"use task.{key}={limit}",
            )
            for key, tokens in self.max_positions().items()
            if tokens > limit
        ]

    def model_overrides(self) -> dict[str, Any]:
        """Keys to set in the model's own configuration, such as the number of labels."""
        return {}

    def option_problems(self) -> list[Problem]:
        """Options that do not fit each other or the classes, which are known by then."""
        return []

    def row_problem(self, row: dict[str, Any]) -> str | None:
        """What is wrong with a row of local data, by column, beside what every recipe checks; None where it is right.

        Asked of every row: a column that it reads may be missing.
        """
        return None

    def labels_of(self, value: object) -> list[Any]:
        """The class labels in a value of the label column, where `label_lists`."""
        return value if isinstance(value, list) else [value]

    def adjust_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Change the tokenizer before it is used, the same way at every call."""
        return

    def features(self, rows: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
        """Raw columns of some rows → features, one entry per resulting row.

        The result holds the model's inputs as lists of integers (no padding), and may hold
        `reference` (what `score` compares with) and `text` (kept with the predictions).
        """
        raise NotImplementedError

    def preparation_notes(self) -> list[str]:
        """What `features` did to rows beyond tokenising them (cut, dropped), one line each."""
        return []

    def length(self, features: dict[str, Any]) -> int:
        """Tokens of one row that the model works on, padding left out."""
        return len(features["input_ids"])

    def items(self, features: dict[str, Any]) -> int:
        """What the mean of the model's loss counts in one row: 1 for a row, or its predicted tokens."""
        return 1

    def collate(self, features: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> Batch:
        """Features of a micro batch → padded tensors of shape (rows, longest row)."""
        raise NotImplementedError

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Mean loss of a micro batch over its items, as a scalar."""
        loss: torch.Tensor = model(**batch).loss
        return loss

    def predict(
        self, model: torch.nn.Module, batch: Batch, tokenizer: PreTrainedTokenizerBase, synced: bool
    ) -> list[Any]:
        """One prediction a row, small and JSON-able.

        Args:
            synced: whether every rank must run the same number of forward passes (partitioned parameters).
        """
        raise NotImplementedError

    def score(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        """Metrics of a whole split, computed once, on rank 0. Only rows with a reference are passed."""
        raise NotImplementedError

    def confusion(self, predictions: list[Any], references: list[Any]) -> dict[str, Any] | None:
        """`names` of the classes, and `counts` (of a reference's class, by predicted class); None for other tasks."""
        return None

    def answers(self, model: torch.nn.Module, batch: Batch) -> list[dict[str, Any]] | None:
        """What `python -m runner predict` writes beside each row; None: what fits the model's class."""
        return None

    def metric_definitions(self) -> dict[str, str]:
        """What a metric's name leaves open, by metric: of which class, which average."""
        return {}

    def generation_settings(self) -> dict[str, Any]:
        """Settings of `generate` that this task decides; empty for a task that does not generate."""
        return {}

    def prompt(self, row: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> str:
        """What a model that continues texts is given for a row without an answer, special tokens included where the
        task's own texts hold them.

        Raises:
            ValueError: where the row holds none.
        """
        column = self.column("text") or "text"
        if row.get(column) is None:
            raise ValueError(f"has no column {column!r} to continue")
        return str(row[column])

    def samples(self, predictions: list[Any]) -> list[Any]:
        """Predictions as they are written to predictions/*.jsonl."""
        return predictions


def parse_options(recipe: type[Recipe], task: dict[str, Any]) -> Options:
    """The `task` section as the recipe's Options.

    Raises:
        RequestError: for an unknown key, a wrong type or a value out of range.
    """
    try:
        return recipe.Options.model_validate(task)
    except ValidationError as error:
        raise RequestError(
            [_option_problem(recipe, item["type"], item["loc"], item["input"], item["msg"]) for item in error.errors()]
        ) from None


def _option_problem(
    recipe: type[Recipe], kind: str, location: tuple[int | str, ...], value: object, message: str
) -> Problem:
    key = "task." + ".".join(map(str, location))
    if kind == "extra_forbidden":
        return Problem(
            key, value, "this recipe reads no such key", f"it has {', '.join(recipe.Options.model_fields) or 'none'}"
        )
    reason = message.removeprefix("Value error, ")
    field = recipe.Options.model_fields.get(str(location[0])) if location else None
    return Problem(
        key, value, reason[0].lower() + reason[1:], f"for example {key}={field.default}" if field is not None else ""
    )


def load_recipe(config: RunConfig) -> Recipe:
    """The recipe of a run, ready to use.

    Raises:
        RequestError: when its file is missing or broken, or an option is wrong.
    """
    return recipe_class(config.recipe.file)(config)


@lru_cache(maxsize=32)
def recipe_class(file: str) -> type[Recipe]:
    """The one Recipe subclass that a recipe file defines."""
    path = recipe_path(file)
    if path.suffix != ".py":
        raise RequestError(
            Problem("recipe.file", file, "a recipe is a Python file, its name ends in .py", "set recipe.file=FILE.py")
        )
    name = f"runner_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001
        where = f"{path}:{error.lineno}" if isinstance(error, SyntaxError) else str(path)
        raise RequestError(
            Problem(
                "recipe.file",
                file,
                f"this file cannot be imported ({where}: {type(error).__name__}: {error})",
                "fix the file",
            )
        ) from None
    found = [
        item
        for item in vars(module).values()
        if inspect.isclass(item) and issubclass(item, Recipe) and item.__module__ == name
    ]
    if len(found) != 1:
        raise RequestError(
            Problem("recipe.file", file, f"{path} must define exactly one subclass of Recipe, it defines {len(found)}")
        )
    return found[0]


def recipe_path(file: str) -> Path:
    """The recipe's file: an absolute path, or looked for in ./recipes, then among the runner's own.

    Raises:
        RequestError: where there is none.
    """
    given = Path(file).expanduser()
    candidates = [given] if given.is_absolute() else [folder / given for folder in paths.recipe_dirs()]
    for path in candidates:
        if path.is_file():
            return path.resolve()
    looked = ", ".join(str(path) for path in candidates) or "./recipes"
    raise RequestError(
        Problem(
            "recipe.file",
            file,
            f"no such file (looked for {looked})",
            "set recipe.file=FILE or create it with `python -m runner new`",
        )
    )
