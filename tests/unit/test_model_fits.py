"""Weights that lack a tensor and a tokenizer of another model are found before any rank starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from runner import render
from runner.compose import compose_run
from runner.config.resolve import resolve_machine
from runner.train.model_check import check_model
from tests.conftest import CASES

MODEL = CASES / "models" / "tiny-deberta-3labels"
TYPED = ("model=deberta_tiny", "model.init=pretrained", "task.max_length=64", "scheduler.warmup_steps=0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def _without(folder: Path, *parts: str) -> None:
    """Remove the tensors whose names hold one of these."""
    tensors = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if not any(part in name for part in parts)}
    assert len(kept) < len(tensors)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def _answer(folder: Path, tmp_path: Path) -> dict[str, Any]:
    config, _ = resolve_machine(compose_run([*TYPED, f'model.path="{folder}"', "launcher.device=cpu"]).config)
    config.dataset.label_names = ["no", "yes"]
    render.write(render.common_files(config, tmp_path / "run"), tmp_path / "run")
    return check_model(tmp_path / "run")


def test_a_whole_model_with_another_head_fits(folder: Path, tmp_path: Path) -> None:
    assert _answer(folder, tmp_path) == {"status": "completed"}  # its head has 3 labels, the run 2


@pytest.mark.parametrize(
    ("part", "said"),  # a layer: 5 projections, 3 dense layers, 2 norms, each of a weight and a bias
    [
        ("layer.0.attention.self.query_proj.weight", "1 tensors of the model's body are missing"),
        ("word_embeddings", "deberta.embeddings.word_embeddings.weight"),
        ("encoder.layer.1.", "20 tensors of the model's body are missing"),
    ],
)
def test_a_tensor_of_the_body_that_is_missing(folder: Path, tmp_path: Path, part: str, said: str) -> None:
    _without(folder, part)
    answer = _answer(folder, tmp_path)
    assert answer["status"] == "refused"
    assert said in answer["why"]


def test_a_configuration_of_another_size(folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "hidden_size": 2 * content["hidden_size"]}))
    assert "do not fit the architecture" in _answer(folder, tmp_path)["why"]


def test_a_vocabulary_twice_as_large_as_the_tokenizer(folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    rows = 3 * content["vocab_size"]
    (folder / "config.json").write_text(json.dumps({**content, "vocab_size": rows}))
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name] = tensors[name].repeat(3, axis=0)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert f"the pretrained model {rows:,}" in _answer(folder, tmp_path)["why"]


def test_the_command_refuses_it_and_leaves_nothing(folder: Path, tmp_path: Path, run_cli: Any) -> None:
    _without(folder, "word_embeddings")
    done = run_cli(*TYPED, f'model.path="{folder}"', f'cache_dir="{tmp_path}/cache"')
    assert done.returncode == 2, done.text
    assert "error: model.path=" in done.stderr
    assert "tensors of the model's body are missing" in done.stderr
    assert not done.run_dir.exists()
