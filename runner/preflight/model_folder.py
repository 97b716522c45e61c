"""A local model folder, looked into before ranks start: configuration, whole weight files, a tokenizer with its
vocabulary.

Weights are not read, only the headers of their files. Nothing of transformers or torch is imported.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from runner import generation
from runner.config.model_types import model_types
from runner.config.schema import RunConfig
from runner.config.sequence_limits import config_folder, is_adapter_folder
from runner.errors import Problem, nearest
from runner.machine import is_installed
from runner.recipe import Recipe
from runner.record_format import RECORD_FILE
from runner.regular_files import read_regular

LARGEST_HEADER = 100_000_000  # bytes; safetensors' own limit
WITH_FAST_TOKENIZER = ("tokenizer.json",)
SENTENCEPIECE = ("spm.model", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "source.spm")
OTHER_VOCABULARIES = ("vocab.json", "vocab.txt", "vocab.bpe", "*.tiktoken", "tekken.json")


def no_model_folder(path: str, key: str = "model.path") -> list[Problem]:
    """A folder that is not there, or holds no model's configuration; its weights are not looked for."""
    folder = Path(path).expanduser()
    try:
        if not folder.is_dir():
            return [Problem(key, path, "there is no such folder", f"set {key}=DIR")]
        if (folder / RECORD_FILE).is_file() and (config_folder(folder / "model") / "config.json").is_file():
            return [Problem(key, path, "this is a run's folder", f"use its final model: {key}={folder / 'model'}")]
        if (folder / "manifest.json").is_file() and folder.parent.name == "checkpoints":
            return [_checkpoint(key, path, folder.parent.parent)]
        if not (config_folder(folder) / "config.json").is_file():
            if is_adapter_folder(folder):
                return [_foreign_adapter(key, path)]
            return [Problem(key, path, "this folder has no config.json", "give a folder written by save_pretrained")]
        return _configuration(folder, path, key)
    except OSError as error:
        return [Problem(key, path, f"it cannot be read ({error.strerror}: {error.filename})", f"set {key}=DIR")]


def _foreign_adapter(key: str, path: str) -> Problem:
    why = "it holds an adapter without the configuration of its model (base/config.json), which runs of ours write"
    fix = f"merge it (peft: merge_and_unload, then save_pretrained), and give that folder as {key}=DIR"
    return Problem(key, path, why, fix)


def _checkpoint(key: str, path: str, run_dir: Path) -> Problem:
    why = "this is a checkpoint of a run, with optimizer states, and no model's folder"
    if (config_folder(run_dir / "model") / "config.json").is_file():
        return Problem(key, path, why, f"use the run's final model: {key}={run_dir / 'model'}")
    fix = (
        f"continue that run with `python -m runner resume '{run_dir}'`; at its end its model lies "
        f"in {run_dir / 'model'}"
    )
    return Problem(key, path, why, fix)


def _configuration(folder: Path, path: str, key: str) -> list[Problem]:
    try:
        content = json.loads(read_regular(config_folder(folder) / "config.json"))
    except (ValueError, RecursionError) as error:
        why = f"its config.json is no JSON ({str(error)[:100]})"
        return [Problem(key, path, why, "give a folder written by save_pretrained")]
    if not isinstance(content, dict):
        return [Problem(key, path, "its config.json holds no JSON object", "give a folder written by save_pretrained")]
    kind, known = content.get("model_type"), model_types()
    if isinstance(kind, str) and (kind in known or not known or "auto_map" in content):
        return []
    why = f"its config.json says model_type={kind!r}, which the installed transformers does not have"
    near = nearest(str(kind), known)
    return [Problem(key, path, why, f"is {near} meant? then write that into config.json" if near else f"set {key}=DIR")]


def check_weights(path: str, key: str = "model.path") -> list[Problem]:
    """Files of weights that are cut short, junk, unreadable, or named by the index and not there."""
    folder, problems = Path(path).expanduser(), []
    names = {file.name for file in folder.glob("*.safetensors")}
    for index in folder.glob("*.safetensors.index.json"):
        missing, wrong = _missing_shards(index, names)
        if wrong:
            problems.append(Problem(key, path, f"{index.name} {wrong}", "copy or download the folder again"))
        elif missing:
            why = f"{len(missing)} of the files that {index.name} names are not there ({', '.join(missing[:3])})"
            problems.append(Problem(key, path, why, "copy or download the folder again"))
    for name in sorted(names):
        wrong = weights_damage(folder / name)
        if wrong:
            problems.append(Problem(key, path, f"{name} {wrong}", "copy or download the folder again"))
    return problems


def _missing_shards(index: Path, present: set[str]) -> tuple[list[str], str]:
    try:
        content = json.loads(read_regular(index))
        return sorted({str(name) for name in content["weight_map"].values()} - present), ""
    except OSError as error:
        return [], f"cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [], "is damaged"


def weights_damage(file: Path) -> str:
    """What is wrong with a safetensors file, by its header and length; empty where nothing is.

    The format: 8 bytes with the header's length N (little endian), N bytes of JSON with each tensor's place, the
    tensors.
    """
    try:
        size = file.stat().st_size
        with open(file, "rb") as content:
            start = content.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else None
            if length is None or length > min(LARGEST_HEADER, size - 8):
                return "is no safetensors file, or cut short"
            header = json.loads(content.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return "has a damaged header"
    expected = 8 + length + max(ends, default=0)
    return "" if size == expected else f"has {size} bytes instead of {expected}"


def check_tokenizer(path: str, key: str) -> list[Problem]:
    """A folder without a tokenizer's vocabulary, for which transformers builds one of special tokens only; and a
    vocabulary
    that needs a package which is not installed.
    """
    folder = Path(path).expanduser()

    def has(names: tuple[str, ...]) -> bool:
        return any(next(folder.glob(name), None) is not None for name in names)

    if has(WITH_FAST_TOKENIZER):
        try:
            json.loads(read_regular(folder / WITH_FAST_TOKENIZER[0]))
        except (OSError, ValueError, RecursionError):
            why = "its tokenizer.json cannot be read"
            return [Problem(key, path, why, "copy it again, or set model.tokenizer=DIR")]
        return []
    if has(SENTENCEPIECE):
        lacks = [name for name in ("sentencepiece", "google.protobuf") if not is_installed(name)]
        if not lacks:
            return []
        packages = " ".join(name.replace("google.", "") for name in lacks)
        why = f"its tokenizer is a SentencePiece model, which needs {packages}"
        return [Problem(key, path, why, f"pip install {packages}")]
    if has(OTHER_VOCABULARIES):
        return []
    why = "this folder has no tokenizer files (tokenizer.json, spm.model, vocab.json, …)"
    return [Problem(key, path, why, "set model.tokenizer=DIR, a folder or hub name with the model's own tokenizer")]


def generation_notices(config: RunConfig, recipe: Recipe) -> list[Problem]:
    """What the folder's generation_config.json adds to the task's keys, and what of it the task overrules."""
    settings: dict[str, Any] = recipe.generation_settings()
    if not config.model.path or not settings:
        return []
    kept, overruled = generation.folder_additions(Path(config.model.path).expanduser(), settings)
    problems = []
    if kept:
        said = ", ".join(f"{name}={value}" for name, value in sorted(kept.items()))
        problems.append(
            Problem("model.path", config.model.path, f"its generation_config.json adds {said}", "", "notice")
        )
    if overruled:
        said = ", ".join(f"{name}={value}" for name, value in sorted(overruled.items()))
        why = f"its generation_config.json says {said}; the task's keys decide instead"
        problems.append(Problem("model.path", config.model.path, why, "", "notice"))
    return problems
