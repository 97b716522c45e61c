"""Local model folders that are damaged, incomplete or something else: told before ranks start, each in our words."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.errors import RequestError
from runner.generation import folder_additions, task_generation
from runner.preflight.model_folder import check_tokenizer, check_weights, no_model_folder, weights_damage
from runner.recipe import recipe_class


def weights(path: Path, tensors: dict[str, int]) -> Path:
    """A safetensors file of bytes: name → length."""
    header, end = {}, 0
    for name, length in tensors.items():
        header[name] = {"dtype": "U8", "shape": [length], "data_offsets": [end, end + length]}
        end += length
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * end)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole model folder."""
    path = tmp_path / "m"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "bert"}')
    (path / "tokenizer.json").write_text("{}")
    weights(path / "model.safetensors", {"a": 10, "b": 5})
    return path


def test_a_whole_folder_passes(folder: Path) -> None:
    assert no_model_folder(str(folder)) + check_weights(str(folder)) + check_tokenizer(str(folder), "model.path") == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is no JSON"),
        ("", "is no JSON"),
        ("[" * 5000, "is no JSON"),
        ("[]", "no JSON object"),
        ('{"model_type": "brt"}', "does not have"),
        ('{"model_type": 3}', "does not have"),
        ("{}", "does not have"),
    ],
)
def test_a_broken_configuration(folder: Path, content: str, why: str) -> None:
    (folder / "config.json").write_text(content)
    [problem] = no_model_folder(str(folder))
    assert problem.key == "model.path"
    assert why in problem.why


def test_a_fifo_is_no_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert len(no_model_folder(str(folder))) == 1


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data[:-3], "bytes instead of"),
        (lambda data: data + b"x", "bytes instead of"),
        (lambda data: b"", "no safetensors file"),
        (lambda data: b"hello", "no safetensors file"),
        (lambda data: b"hello, these are no weights at all", "no safetensors file"),
        (lambda data: data[:20], "no safetensors file"),
        (lambda data: data[:8] + b"}" + data[9:], "damaged header"),
        (lambda data: struct.pack("<Q", 2**63) + data[8:], "no safetensors file"),
    ],
)
def test_weights_that_are_cut_or_junk(folder: Path, damage: Any, why: str) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    assert why in weights_damage(file)
    assert [problem.key for problem in check_weights(str(folder))] == ["model.path"]


def test_a_shard_that_is_not_there(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    [problem] = check_weights(str(folder))
    assert "model-00002-of-00002.safetensors" in problem.why
    (folder / "model.safetensors.index.json").write_text("[1]")
    assert "is damaged" in check_weights(str(folder))[0].why


def test_a_folder_without_vocabulary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    [problem] = check_tokenizer(str(folder), "model.path")
    assert "no tokenizer files" in problem.why
    assert "model.tokenizer=DIR" in problem.fix
    (folder / "spm.model").write_bytes(b"x")
    monkeypatch.setattr("runner.preflight.model_folder.is_installed", lambda name: name != "sentencepiece")
    [problem] = check_tokenizer(str(folder), "model.path")
    assert problem.fix == "pip install sentencepiece"


def test_a_run_and_a_checkpoint_lead_to_the_model(folder: Path, tmp_path: Path) -> None:
    run, checkpoint = tmp_path / "run", tmp_path / "run" / "checkpoints" / "step_00000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    (run / "record.json").write_text("{}")
    assert f"resume '{run}'" in no_model_folder(str(checkpoint))[0].fix
    os.rename(folder, run / "model")
    assert no_model_folder(str(run))[0].fix == f"use its final model: model.path={run / 'model'}"
    assert f"model.path={run / 'model'}" in no_model_folder(str(checkpoint))[0].fix


@pytest.mark.parametrize("line", ["import sys; sys.exit(0)", "raise SystemExit", "exit()", "quit(3)"])
def test_a_recipe_that_ends_the_program_at_import(tmp_path: Path, line: str) -> None:
    file = tmp_path / "leaves.py"
    file.write_text(f"{line}\n")
    with pytest.raises(RequestError, match="cannot be imported"):
        recipe_class(str(file))


def test_the_tasks_generation_keys_decide() -> None:
    from transformers import GenerationConfig

    folder_says = GenerationConfig(max_new_tokens=5, min_new_tokens=4, length_penalty=0.65, num_beams=7, eos_token_id=2)
    model = SimpleNamespace(generation_config=folder_says)
    chosen = task_generation(model, {"max_length": 32, "min_length": 1, "num_beams": 3})
    assert (chosen.max_new_tokens, chosen.min_new_tokens) == (None, None)
    assert (chosen.max_length, chosen.num_beams, chosen.length_penalty, chosen.eos_token_id) == (32, 3, 0.65, 2)
    assert folder_says.max_new_tokens == 5  # the model's own stays


def test_what_a_folder_adds_to_the_task(tmp_path: Path) -> None:
    said = {"max_new_tokens": 5, "suppress_tokens": [3], "num_beams": 7, "max_length": 32, "eos_token_id": 2}
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    kept, overruled = folder_additions(tmp_path, {"num_beams": 3, "max_length": 32})
    assert kept == {"suppress_tokens": [3]}
    assert overruled == {"max_new_tokens": 5, "num_beams": 7}
    (tmp_path / "generation_config.json").write_text("[")
    assert folder_additions(tmp_path, {}) == ({}, {})
