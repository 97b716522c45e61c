"""Sections of what goes into a run: the task's code, the model, the rows."""

from __future__ import annotations

import codecs
from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from runner.config.fields import Count, Float, Int, Open, Section, Text

DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|"}  # names that need no quotes in a shell


class RecipeConfig(Section):
    """Which task code runs, and how its result is judged."""

    name: Text = Field("deberta_mrpc", description="Name of the recipe, as chosen by `recipe=`.")
    file: Text = Field(
        "text_classification.py",
        description="Python file of the task, looked for in ./recipes, then in the runner's recipes.",
    )
    families: list[Text] = Field(
        ["encoder"], description="Model families this recipe can train: encoder, seq2seq, causal_lm."
    )
    metric_for_best: Text = Field("f1", description="Metric that names the best epoch and the best checkpoint.")
    greater_is_better: bool = Field(True, description="Whether a larger value of `metric_for_best` is better.")
    batch_by_launcher: dict[str, dict[str, Count]] = Field(
        {},
        description="Micro batch sizes by launcher, for recipes whose classic settings differ between DDP and "
        "DeepSpeed.",
    )


class ModelConfig(Section):
    """Which model is trained and where its weights come from."""

    name: Text = Field("deberta_tiny", description="Name of the model, as chosen by `model=`.")
    family: Text = Field("encoder", description="encoder, seq2seq or causal_lm; must be one the recipe trains.")
    hub_id: Text | None = Field(None, description="Name on the Hugging Face hub.")
    revision: Text | None = Field(None, description="Branch, tag or commit on the hub; null is the default branch.")
    path: Text | None = Field(
        None, description="Local folder with config, weights (safetensors) and tokenizer; wins over `hub_id`."
    )
    init: Literal["pretrained", "random"] = Field(
        "pretrained",
        description="pretrained loads weights; random builds the model from `model.config` (or the folder's "
        "config.json).",
    )
    tokenizer: Text | None = Field(
        None, description="Tokenizer folder or hub name; null means the model's own; `bundled:NAME` a bundled one."
    )
    config: Open = Field(
        {},
        description="Architecture facts in the words of the transformers config class; used for `init=random` and for "
        "memory estimates.",
    )
    fp16_overflows: bool = Field(False, description="Whether the model is known to give NaN in fp16 (T5).")
    gated: bool = Field(False, description="Whether the hub asks for a token and an accepted licence.")
    trust_remote_code: bool = Field(False, description="Whether Python code that comes with the model may be executed.")
    allow_pickle: bool = Field(
        False, description="Whether .bin weights (pickle) may be loaded; otherwise safetensors only."
    )


class DatasetConfig(Section):
    """Which rows are read and how their columns are called."""

    name: Text = Field("paraphrase_sample", description="Name of the data set, as chosen by `dataset=`.")
    source: Literal["hub", "files", "bundled"] = Field("bundled", description="Where rows come from.")
    hub_id: Text | None = Field(None, description="Data set name on the Hugging Face hub.")
    hub_config: Text | None = Field(
        None, description="Configuration of the hub data set, e.g. `mrpc` of `nyu-mll/glue`."
    )
    revision: Text | None = Field(None, description="Branch, tag or commit on the hub.")
    train: Text | list[Text] | None = Field(
        None,
        description="Training split name (hub) or file path(s) or pattern(s), data/*.jsonl: csv, tsv, json, jsonl, "
        "parquet, txt; also .gz, .bz2, .xz, .zst.",
    )
    validation: Text | list[Text] | None = Field(None, description="Validation split name (hub) or file path(s).")
    test: Text | list[Text] | None = Field(
        None, description="Test split or file path(s); predicted after training, scored where it has labels."
    )
    columns: dict[str, Text | None] = Field(
        {}, description="Column the recipe expects → column of the data; null where the data has none."
    )
    label_names: list[Text] | None = Field(
        None, description="Class names in order of their ids; null: read from the training split, sorted."
    )
    max_train_rows: Int | None = Field(None, ge=1, description="Use only the first rows of the training split.")
    max_validation_rows: Int | None = Field(None, ge=1, description="Use only the first rows of the validation split.")
    max_classes: Int = Field(
        200, ge=2, description="Most classes that are taken for classes without a question; more need this key raised."
    )
    validation_fraction: Float | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description="Share of the training files' rows that is held out as the validation split, of each class alike; "
        "needs `validation` to be null.",
    )
    validation_seed: Int = Field(
        42,
        ge=0,
        le=2**32 - 1,
        description="Seed of the rows held out by `validation_fraction`, whatever `train.seed` is.",
    )
    delimiter: Text | None = Field(
        None,
        description="Between the cells of csv and tsv files: one character, or comma, tab, semicolon, pipe; null: "
        "comma "
        "for .csv, tab for .tsv.",
    )
    quoting: Literal["double", "none"] | None = Field(
        None,
        description='double: a cell may stand in "…"; none: quotation marks are text; null: double for .csv, none for '
        ".tsv.",
    )
    encoding: Text | None = Field(
        None, description="Encoding of text files, in Python's names, e.g. cp1252 or utf-16; null: UTF-8."
    )
    drop_bad_rows: bool = Field(
        False,
        description="Leave out rows of the training and validation files that cannot be read, or lack text or label; "
        "their number stands in the notes.",
    )
    rows: dict[str, Int] = Field(
        {}, description="Rows by split, where known without reading the data; filled in from local files."
    )
    label_counts: dict[str, Int] = Field(
        {}, description="Training rows by class name, where known; filled in from local files."
    )
    generated: bool = Field(False, description="True for the bundled samples: generated text, not a benchmark.")

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        value = "tab" if value in ("\t", "\\t") else value
        if value is not None and value not in DELIMITERS and (len(value) != 1 or value in '"\r\n'):
            raise PydanticCustomError("delimiter", "this is one character, or comma, tab, semicolon, pipe")
        return value

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str | None) -> str | None:
        try:
            if value is not None and not "".encode(value):
                codecs.lookup(value)
        except (LookupError, ValueError):
            raise PydanticCustomError(
                "encoding", "Python knows no such text encoding, unlike cp1252 or utf-16"
            ) from None
        return value
