"""What an ejected folder holds, and which requests cannot be written as a script."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli import eject
from runner.eject.code import base_class, vendored
from runner.errors import RequestError
from runner.paths import recipe_dirs
from tests.conftest import ROOT

SMALL = ("dataset.max_train_rows=40", "dataset.max_validation_rows=8", "launcher.device=cpu")
BUNDLED = {path.name: path for folder in recipe_dirs() for path in folder.glob("*.py")}


@pytest.mark.parametrize("name", ["text_classification.py", "seq2seq.py", "causal_lm.py"])
def test_the_code_of_a_recipe_needs_no_runner(name, tmp_path: Path) -> None:
    for path, text in vendored(BUNDLED[name]).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = [getattr(node, "module", None) or node.names[0].name for node in imported]
        under_type_checking = "if TYPE_CHECKING" in text
        assert under_type_checking or not [name for name in names if name.split(".")[0] == "runner"], path
    blocked = tmp_path / "runner.py"
    blocked.write_text("raise ImportError('not installed')\n")
    subprocess.run([sys.executable, "-c", "import recipe"], cwd=tmp_path, check=True, timeout=60)


def test_the_base_class_has_the_hooks_and_no_checks_of_the_runner() -> None:
    source = base_class()
    (recipe,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Recipe"]
    methods = {node.name for node in recipe.body if isinstance(node, ast.FunctionDef)}
    assert {"column", "values", "features", "collate", "loss", "predict", "score"} <= methods
    assert "length_problems" not in methods
    assert "RunConfig" not in source


def test_a_recipe_that_uses_the_runners_inside_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("from runner.train.batching import POOL\nfrom runner import recipe\n")
    with pytest.raises(RequestError, match=r"runner\.train\.batching, which works only inside the runner"):
        vendored(own)


def test_the_folder_is_formatted_and_its_requirements_are_exact(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert eject.main([*SMALL, "zero_stage=3", "--to", str(folder)]) == 0
    formatted = [sys.executable, "-m", "ruff", "format", "--check", "--isolated", "--config", "line-length=120", folder]
    subprocess.run(formatted, check=True, timeout=60)
    requirements = (folder / "requirements.txt").read_text().splitlines()
    names = {line.partition("==")[0] for line in requirements}
    assert {"torch", "accelerate", "transformers", "deepspeed"} <= names
    assert all(line.count("==") == 1 and "+" not in line for line in requirements)
    assert "finetune-runner" not in names
    assert len((folder / "data/train.jsonl").read_text().splitlines()) == 40
    assert "ds_config.json" in (folder / "accelerate.yaml").read_text()
    assert str(tmp_path) not in (folder / "accelerate.yaml").read_text()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("launcher=fsdp",), "launcher=fsdp: there is no standalone script"),
        (("train.early_stopping_patience=2",), "train.early_stopping_patience=2"),
        (("adapter=lora",), "adapter=lora: the script trains whole models"),
        (("mode=evaluate", "model.path=."), "mode=evaluate"),
    ],
)
def test_what_cannot_be_a_script_is_refused_and_nothing_is_written(typed, words, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refused:
        eject.main([*SMALL, *typed, "--to", str(tmp_path / "out")])
    assert words in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="this exists already"):
        eject.main([*SMALL, "--to", str(tmp_path)])


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path, monkeypatch) -> None:
    page = (ROOT / "docs/eject.md").read_text()
    first, second = [
        line.removeprefix("python -m runner eject ") for line in page.splitlines() if line.startswith("python -m")
    ]
    monkeypatch.chdir(tmp_path)
    assert eject.main([*SMALL, *first.split()]) == 0
    holds = {
        name.strip("`, ") for row in page.splitlines() if row.startswith("| `") for name in row.split("|")[1].split(",")
    }
    assert {name for name in holds if not (tmp_path / "my_training" / name).exists()} == set()
    with pytest.raises(RequestError, match="RUN_DIR: this is no run folder"):
        eject.main(second.replace("my_training", "another").split())
