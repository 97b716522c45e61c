"""The standalone folder: script, recipe, data, configuration of accelerate and DeepSpeed, requirements."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import shutil
import sys
from pathlib import Path

import yaml

from runner import paths, render
from runner.config.catalogue import BUNDLED_TOKENIZER
from runner.config.schema import RunConfig
from runner.data.prepared import raw_rows
from runner.eject.code import vendored
from runner.eject.script import TOKENIZER, Ejected
from runner.engines import engine_of
from runner.engines.base import EngineFile
from runner.recipe import Recipe, recipe_path
from runner.secrets import redacted

HERE = Path(".")  # paths in the files are relative to the folder
_SECTIONS = {"model", "dataset", "task", "train"}  # what hooks of recipes read
_ALWAYS = ("accelerate", "torch", "transformers", "sentencepiece", "protobuf")  # the last two: for tokenizers


def write_folder(
    config: RunConfig, recipe: Recipe, total_steps: int | None, own_file: EngineFile | None, to: Path
) -> list[str]:
    """Write the folder; it appears when it is complete.

    Returns:
        Lines on what the user should know: where data came from, what is not in the script.

    Raises:
        RequestError: for a configuration without a script, before anything is written.
    """
    ejected = Ejected.of(config, recipe)
    code = vendored(recipe_path(config.recipe.file))
    partial = to.with_name(f".{to.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / "data").mkdir(parents=True)
        splits = _write_rows(recipe, partial / "data")
        texts = code | ejected.render(list(splits))
        texts["accelerate.yaml"] = yaml.safe_dump(render.accelerate_config(config, HERE))
        texts |= engine_of(config).files(config, HERE, total_steps, own_file)
        texts["config.json"] = json.dumps(config.model_dump(mode="json", include=_SECTIONS), indent=2) + "\n"
        texts["requirements.txt"] = requirements(texts)
        for name, text in texts.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_text(redacted(text), encoding="utf-8")
        _copy_tokenizer(config, partial)
        os.replace(partial, to)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    rows = ", ".join(f"{count:,} of {name}" for name, count in splits.items())
    notes = [f"data       copied: {rows} rows, as the run reads them"]
    if config.model.path:
        notes.append(f"model      read from {config.model.path}; it is not copied")
    if config.checkpoint.every_steps or config.checkpoint.every_epoch or config.checkpoint.every_minutes:
        notes.append("left out   checkpoints and resume: the script trains from start to end")
    return notes


def _write_rows(recipe: Recipe, folder: Path) -> dict[str, int]:
    """One JSON Lines file a split; returns its rows by split."""
    written = {}
    for split in ("train", "validation", "test"):
        rows = raw_rows(recipe, split)
        if rows is None:
            continue
        with open(folder / f"{split}.jsonl", "w", encoding="utf-8") as file:
            count = 0
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
                count += 1
        written[split] = count
    return written


def _copy_tokenizer(config: RunConfig, folder: Path) -> None:
    name = config.model.tokenizer or ""
    if name.startswith(BUNDLED_TOKENIZER):
        source = paths.samples_dir() / "tokenizers" / name.removeprefix(BUNDLED_TOKENIZER)
        shutil.copytree(source, folder / TOKENIZER)


def requirements(texts: dict[str, str]) -> str:
    """Exact versions of the packages that the folder's code imports, as they are installed here."""
    imported = {name for path, text in texts.items() if path.endswith(".py") for name in _top_level_imports(text)}
    if "deepspeed_config" in texts["accelerate.yaml"]:
        imported |= {"deepspeed", "ninja"}  # ninja: DeepSpeed compiles ops with it
    owners = importlib.metadata.packages_distributions()
    outside = {name for name in imported if name not in sys.stdlib_module_names and name in owners}
    packages = sorted({owners[name][0] for name in outside} | set(_ALWAYS), key=str.lower)
    return "".join(f"{package}=={_public(importlib.metadata.version(package))}\n" for package in packages)


def _public(version: str) -> str:
    """Without the local part (`+cpu`), which only the index of one build has."""
    return version.partition("+")[0]


def _top_level_imports(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found
