"""Predictions for rows without labels: class probabilities, replies, continued texts; one process, no ranks."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from runner.config.schema import RunConfig
from runner.data.files import read_rows
from runner.data.reading import UnreadableFile
from runner.errors import Problem, RequestError
from runner.generation import GeneratingModel
from runner.recipe import Batch, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OUTPUTS = (".csv", ".jsonl")
Answers = Callable[["PreTrainedModel", Recipe, "PreTrainedTokenizerBase", list[dict[str, Any]]], list[dict[str, Any]]]


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of the input.

    Raises:
        RequestError: for a file that cannot be read or has no rows.
    """
    try:
        rows = list(read_rows(file))
    except UnreadableFile as error:
        raise RequestError(
            Problem("--input", file, str(error).removeprefix(f"{file}: "), "name another file")
        ) from None
    if not rows:
        raise RequestError(Problem("--input", file, "there are no rows in it", "name another file"))
    return rows


def check_columns(recipe: Recipe, rows: list[dict[str, Any]], file: Path) -> None:
    """The texts the model reads must be there; labels need not.

    Raises:
        RequestError: naming each missing column, or the first row without a text.
    """
    needed = [name for name in recipe.columns if name not in recipe.optional_columns and name not in _labels(recipe)]
    found = list(dict.fromkeys(key for row in rows for key in row))
    problems = []
    for name in needed:
        column = recipe.column(name)
        if column not in found:
            problems.append(
                Problem(
                    f"dataset.columns.{name}",
                    column,
                    f"{file} has no such column; it has {', '.join(found)}",
                    f"add dataset.columns.{name}=COLUMN",
                )
            )
            continue
        empty = next((number for number, row in enumerate(rows, 1) if row.get(column) in (None, "")), None)
        if empty is not None:
            problems.append(Problem("--input", file, f"row {empty} has no text in column {column}", "fill it in"))
    if problems:
        raise RequestError(problems)


def _labels(recipe: Recipe) -> tuple[str, ...]:
    """Columns that hold what is to be predicted."""
    own = (recipe.label_column,) if recipe.label_column else ()
    return (*own, *recipe.target_columns, "target", "reference", "response")


def predict(
    folder: Path, config: RunConfig, rows: list[dict[str, Any]], say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Each row with its own columns and what the model says of it.

    Args:
        folder: `from_pretrained` folder.
        config: of the run that made it: recipe, options, class names, columns, evaluation batch.
    """
    import torch
    from transformers import AutoTokenizer

    from runner.inference.export import whole_model
    from runner.recipe import load_recipe

    recipe = load_recipe(config)
    tokenizer = AutoTokenizer.from_pretrained(folder)  # type: ignore[no-untyped-call]
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = whole_model(folder, recipe.auto_class, config.model)
    model = model.to(device).eval()
    answers = _ANSWERS.get(recipe.auto_class, recipe_answers)
    if type(recipe).answers is not Recipe.answers:
        answers = own_answers
    size = config.train.eval_micro_batch_size
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        with torch.no_grad():
            found = answers(model, recipe, tokenizer, batch)
        if len(found) != len(batch):
            raise RequestError(
                Problem("recipe", config.recipe.name, "its features are not one a row, so no row has a prediction", "")
            )
        yield from ({**row, **answer} for row, answer in zip(batch, found, strict=True))
        say(f"{min(start + size, len(rows))} of {len(rows)} rows")


def _tensors(
    model: PreTrainedModel, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, rows: Sequence[dict[str, Any]]
) -> Batch:
    """The rows as the recipe's batch, labels left out, on the model's device."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    labels = {recipe.column(name) for name in (recipe.label_column, *recipe.target_columns) if name is not None}
    columns = {name: [row.get(name) for row in rows] for name in names if name not in labels}
    features = recipe.features(columns, tokenizer)
    count = len(next(iter(features.values())))
    tensors = recipe.collate(
        [{key: value[index] for key, value in features.items()} for index in range(count)], tokenizer
    )
    return {key: value.to(model.device) for key, value in tensors.items()}


def class_probabilities(
    model: PreTrainedModel, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """`prediction`, and `probability_NAME` of each class (softmax of the logits)."""
    tensors = {key: value for key, value in _tensors(model, recipe, tokenizer, rows).items() if key != "labels"}
    shares = model(**tensors).logits.float().softmax(dim=-1).tolist()
    by_id = {int(index): str(name) for index, name in (model.config.id2label or {}).items()}
    names = [by_id[index] for index in range(len(by_id))]
    return [
        {
            "prediction": names[max(range(len(names)), key=line.__getitem__)],
            **{f"probability_{name}": round(share, 6) for name, share in zip(names, line, strict=True)},
        }
        for line in shares
    ]


def continuations(
    model: PreTrainedModel, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """`prediction`: how the model goes on after each text, greedily, at most 64 tokens."""
    try:
        texts = [recipe.prompt(row, tokenizer) for row in rows]
    except ValueError as error:
        raise RequestError(Problem("--input", None, f"a row {error}", "fix the row")) from None
    tokenizer.padding_side = "left"
    room = max(8, int(getattr(model.config, "max_position_embeddings", 1024) or 1024) - _NEW_TOKENS)
    # A chat template writes the first token itself; the tokenizer would add a second one.
    written = bool(tokenizer.bos_token) and texts[0].startswith(str(tokenizer.bos_token))
    special = {"add_special_tokens": False} if written else {}
    encoded = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=room, **special).to(
        model.device
    )
    encoded.pop("token_type_ids", None)
    new = cast(GeneratingModel, model).generate(
        **encoded, max_new_tokens=_NEW_TOKENS, do_sample=False, pad_token_id=tokenizer.pad_token_id
    )
    tails = tokenizer.batch_decode(new[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    return [{"prediction": tail} for tail in tails]


def recipe_answers(
    model: PreTrainedModel, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """`prediction` as the recipe writes it to predictions/*.jsonl."""
    found = recipe.predict(model, _tensors(model, recipe, tokenizer, rows), tokenizer, False)
    return [{"prediction": sample} for sample in recipe.samples(found)]


def own_answers(
    model: PreTrainedModel, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What the recipe's `answers` says."""
    tensors = {key: value for key, value in _tensors(model, recipe, tokenizer, rows).items() if key != "labels"}
    return recipe.answers(model, tensors) or []


_NEW_TOKENS = 64
_ANSWERS: dict[str, Answers] = {
    "AutoModelForSequenceClassification": class_probabilities,
    "AutoModelForCausalLM": continuations,
}


def write(rows: Sequence[dict[str, Any]], output: Path) -> None:
    """csv or jsonl by the ending; the file appears when it is complete.

    Raises:
        OSError: where it cannot be written.
    """
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="") as file:
            if output.suffix.lower() == ".jsonl":
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            else:
                writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(key for row in rows for key in row)))
                writer.writeheader()
                writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)


def _cell(value: object) -> object:
    """A list as JSON text, which other programs read; other values as they are."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value
