"""A recipe as a template: names, refusals, and what is written."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from runner.cli.new import main
from runner.config.catalogue import recipes_for
from runner.errors import RequestError
from runner.recipe import recipe_class
from runner.scaffold import class_name, create, template


def refusal(name: str, root: Path) -> str:
    with pytest.raises(RequestError) as caught:
        create(name, template("deberta_mrpc"), root)
    return str(caught.value)


@pytest.mark.parametrize("source", ["deberta_mrpc", "blenderbot_mudoconv", "gpt2_wikitext"])
def test_a_copy_differs_in_names_only(source: str, tmp_path: Path) -> None:
    code, settings = create("my_task", template(source), tmp_path)
    made, original = yaml.safe_load(settings.read_text()), yaml.safe_load(template(source).settings.read_text())
    assert (made["recipe"]["name"], made["recipe"]["file"]) == ("my_task", "my_task.py")
    assert made["recipe"] | {"name": "", "file": ""} == original["recipe"] | {"name": "", "file": ""}
    assert settings.read_text().startswith("# @package _global_\n")
    assert source not in settings.read_text() + code.read_text()
    assert recipe_class(str(code)).__name__ == "MyTask"
    before = [type(node) for node in ast.walk(ast.parse(template(source).code.read_text()))]
    assert [type(node) for node in ast.walk(ast.parse(code.read_text()))] == before


@pytest.mark.parametrize(
    "name", ["my task", "9a", "class", "größe", "", "_hidden", "a-b", "../x", "x" * 101, "x" * 300]
)
def test_names_that_are_no_identifiers(name: str, tmp_path: Path) -> None:
    assert "a recipe's name must be a Python identifier" in refusal(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    assert "there is a recipe of this name" in refusal("gpt2_wikitext", tmp_path)
    assert "seq2seq.py exists, and nothing is overwritten" in refusal("seq2seq", tmp_path)
    (tmp_path / "conf/recipe").mkdir(parents=True)
    (tmp_path / "conf/recipe/mine.yaml").write_text("# mine")
    assert "mine.yaml exists, and nothing is overwritten" in refusal("mine", tmp_path)
    assert (tmp_path / "conf/recipe/mine.yaml").read_text() == "# mine"
    assert not (tmp_path / "recipes").exists()


@pytest.mark.parametrize("blocked", ["recipes", "conf", "conf/recipe"])
def test_both_files_are_written_or_none(blocked: str, tmp_path: Path) -> None:
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("a file")
    before = sorted(tmp_path.rglob("*"))
    assert f"the recipe cannot be written there ({tmp_path / blocked} is a file)" in refusal("mine", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_stands_in_a_new_folder_before_a_failure_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner import scaffold

    write = scaffold._write_new

    def full(path: Path, text: str) -> None:
        if path.suffix == ".yaml":
            raise OSError(28, "No space left on device")
        write(path, text)

    monkeypatch.setattr(scaffold, "_write_new", full)
    assert "(No space left on device)" in refusal("mine", tmp_path / "q" / "r")
    assert list(tmp_path.iterdir()) == []


def test_unknown_template_names_the_nearest() -> None:
    with pytest.raises(RequestError, match="use --from deberta_mrpc"):
        template("deberta_mprc")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"name: [\n", "this file cannot be read as YAML"),
        (b"\xff", "this file cannot be read as YAML"),
        (b"recipe: 3\n", "names this file, but it is not to be found"),
    ],
)
def test_a_broken_recipe_of_the_user(content: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named where it is asked for, and in nobody's way where it is not."""
    (tmp_path / "conf" / "recipe").mkdir(parents=True)
    (tmp_path / "conf" / "recipe" / "odd.yaml").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=why) as caught:
        template("odd")
    assert f"{tmp_path}/conf/recipe/odd.yaml" in str(caught.value)
    assert recipes_for("causal_lm") == ["chat_sft", "dpo", "gpt2_wikitext"]


def test_class_names_do_not_hide_what_the_file_uses() -> None:
    assert class_name("my_task", "class Seq2Seq: ...") == "MyTask"
    assert class_name("label_map", "from x import LabelMap") == "LabelMapRecipe"


def test_new_tells_what_to_edit_and_how_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["talk", "--from", "blenderbot_mudoconv", "--to", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"wrote {tmp_path}/recipes/talk.py" in said
    assert f"cd {tmp_path} && python -m runner recipe=talk model=blenderbot_tiny" in said
    assert "dataset.columns.texts=YOUR_COLUMN" in said
