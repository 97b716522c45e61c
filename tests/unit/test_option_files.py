"""What stands in a user's own YAML, and text that no file or terminal should get: refused in one line, before Hydra."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from runner.compose import compose_run
from runner.compose.multirun import run_multirun
from runner.config.yaml_shape import MOST_LEVELS, nesting, shape_problem
from runner.errors import Problem, RequestError
from runner.plain_text import escaped, storable


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`refused(yaml, *overrides)` → the problems of recipe=mine with that file."""
    monkeypatch.chdir(tmp_path)

    def problems(text: str, *overrides: str) -> list[Problem]:
        _recipe(text)
        with pytest.raises(RequestError) as error:
            compose_run(["recipe=mine", *overrides])
        return error.value.problems

    return problems


def _recipe(text: str) -> None:
    path = Path("conf/recipe/mine.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# @package _global_\n{text}\n")


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("launcher: ddp", "type launcher=ddp"),  # chosen before recipes are read: no line of a recipe could do it
        ("zero_stage: 2", '- override /zero_stage: "2"'),
        ("model: deberta_tiny", "- override /model: deberta_tiny"),
        ("dataset: paraphrase_sample", "- override /dataset: paraphrase_sample"),
        ("method: zero_2", "type +method=zero_2"),
        ("launcher: {name: ddp}", "type launcher=ddp"),
        ("zero: {stage: 3}", '- override /zero_stage: "3"'),
        ("precision: no", "OPTION is one of auto, bf16, fp16, fp32"),
        ("launcher: off", "OPTION is one of ddp, deepspeed"),
        ("tracker: tensorboard", "- override /tracker: tensorboard"),
        ("cluster: local", "type cluster=local"),
    ],
)
def test_a_group_as_a_plain_key_is_told_how_groups_are_chosen(refused: Any, line: str, advice: str) -> None:
    [problem] = refused(line)
    assert "mine.yaml" in problem.key
    assert "as a plain key it has no effect" in problem.why
    assert advice in problem.fix


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        ("override /precision: no", "auto, bf16, fp16, fp32"),
        ("override /zero_stage: 2", '- override /zero_stage: "2"'),
        ("override /launcher: off", "type launcher=OPTION (OPTION is one of ddp, deepspeed"),
    ],
)
def test_names_that_yaml_reads_as_something_else(refused: Any, entry: str, advice: str) -> None:
    [problem] = refused(f"defaults:\n  - {entry}")
    assert "a name is text" in problem.why
    assert advice in problem.fix


def test_the_advised_line_works(refused: Any) -> None:
    _recipe(
        'defaults:\n  - override /offload: cpu\n  - override /precision: fp32\n  - override /zero_stage: "3"\n'
        "recipe: {name: mine, file: text_classification.py}"
    )
    config = compose_run(["recipe=mine"]).config
    assert (config.offload.optimizer, config.precision.name, config.zero.stage) == ("cpu", "fp32", 3)


def test_a_choice_that_comes_too_late_says_where_to_make_it(refused: Any) -> None:
    [problem] = refused("defaults:\n  - override /launcher: ddp")
    assert "launcher is chosen before the files of recipe are read" in problem.why
    assert problem.fix == "leave it out of the file and type launcher=ddp"


def test_a_broken_reference_in_a_list_is_told_of_the_whole_list(refused: Any) -> None:
    text = 'optimizer: {betas: [0.9, "${oc.env:NO_SUCH}"]}\nrecipe: {name: mine, file: text_classification.py}'
    [problem] = refused(text)
    assert (problem.key, problem.fix) == ("optimizer.betas", "set optimizer.betas=VALUE")
    assert compose_run(["recipe=mine", "optimizer.betas=[0.8,0.9]"]).config.optimizer.betas == (0.8, 0.9)


def test_missing_marks_beside_references_in_lists(refused: Any) -> None:
    text = (
        'optimizer:\n  lr: ???\n  betas: ["${model.name}", "???"]\nrecipe: {name: mine, file: text_classification.py}'
    )
    assert [problem.key for problem in refused(text)] == ["optimizer.lr", "optimizer.betas"]
    given = compose_run(["recipe=mine", "optimizer.lr=0.5", "optimizer.betas=[0.8,0.9]"]).config.optimizer
    assert (given.lr, given.betas) == (0.5, (0.8, 0.9))


def _bomb(levels: int) -> str:
    lines = ["task:", "  a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (_bomb(9), "holds more than 100,000 values"),
        ("task: &a {x: *a}", "holds itself"),
        ("task: {x: " + "[" * 80 + "]" * 80 + "}", "nested more than 64 deep"),
        ("task: {x: " + "[" * 3000 + "]" * 3000 + "}", "nested too deep"),
        ("task: {x: " + "{a: " * 900 + "1" + "}" * 901, "nested too deep"),
    ],
)
def test_yaml_that_grows_or_nests_is_refused_at_once(refused: Any, text: str, why: str) -> None:
    began = time.monotonic()
    [problem] = refused(text)
    assert why in problem.why
    assert time.monotonic() - began < 5  # a minute and a half before
    with pytest.raises(RequestError, match=r"mine\.yaml"):
        run_multirun(["recipe=mine", "train.epochs=1,2"], lambda cells: [None] * len(cells))


def _doubling(line: str, levels: int = 20) -> str:
    """`levels` keys of task, each of which names the next one twice: 2**20 values when they are written out."""
    return "task:\n" + "".join(f"  a{n}: {line.replace('NEXT', f'a{n + 1}')}\n" for n in range(levels)) + "  a20: x"


@pytest.mark.parametrize(
    "line",
    [
        "${task.NEXT}${task.NEXT}",
        "['${.NEXT}', '${.NEXT}']",
        "{x: '${task.NEXT}', y: '${task.NEXT}'}",
        "${oc.select:task.NEXT}${oc.select:task.NEXT}",
    ],
)
def test_references_that_grow_are_refused_at_once(refused: Any, line: str) -> None:
    began = time.monotonic()
    [problem] = refused(_doubling(line))
    assert "with its references written out it holds more than 100,000 values" in problem.why
    assert problem.key.startswith("task.a0")
    assert time.monotonic() - began < 5  # more than four minutes before


def test_references_in_an_ordinary_measure_are_fine() -> None:
    found = compose_run(["note='${model.name} ${recipe.name} ${train.seed}'"]).config.note
    assert found == "deberta_tiny deberta_mrpc 42"


@pytest.mark.parametrize(("text", "key"), [("note: ${", "note=${"), ("task: {x: [1, '${nope(']}", "task.x[1]=${nope(")])
def test_a_broken_reference_names_file_and_key(refused: Any, text: str, key: str) -> None:
    [problem] = refused(text)
    assert f"mine.yaml: {key}: this reference cannot be read" in problem.line()


def test_anchors_in_an_ordinary_measure_are_fine() -> None:
    shared = [1] * 100
    assert shape_problem({"a": [shared] * 100, "b": {"c": shared}}) == ""
    assert shape_problem({"a": [[shared] * 100] * 100}) != ""


@pytest.mark.parametrize("brackets", ["[]", "{}", "()"])
def test_overrides_nested_deep_are_refused(brackets: str) -> None:
    text = "task.x=" + brackets[0] * 3000 + brackets[1] * 3000
    assert nesting(text) == 3000
    with pytest.raises(RequestError, match=f"nested more than {MOST_LEVELS} deep"):
        compose_run([text])


@pytest.mark.parametrize("key", ["hydra.run.dir", "hydra.sweep.dir"])
def test_no_folder_is_said_in_our_words(key: str) -> None:
    with pytest.raises(RequestError) as error:
        if key == "hydra.run.dir":
            compose_run([f"{key}=null"])
        else:
            run_multirun([f"{key}=null", "train.epochs=1,2"], lambda cells: [None] * len(cells))
    assert error.value.problems[0].key == key
    assert f"set {key}=DIR" in error.value.problems[0].fix


def test_a_tilde_in_the_run_folder_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert compose_run(['hydra.run.dir="~/x"']).run_dir == Path("/somewhere/x")


@pytest.mark.parametrize("argument", ["note=a\udcff", "dataset.train=/data/\udce4.csv", "\udcff=1"])
def test_bytes_that_are_not_utf8_are_refused(argument: str) -> None:
    with pytest.raises(RequestError, match="not UTF-8") as error:
        compose_run([argument])
    str(error.value).encode()  # it can be printed


def test_a_terminal_gets_no_escape_sequences() -> None:
    line = Problem("note", "\x1b[31mred\x07", "why\x1b]0;title\x07").line()
    assert line.isprintable()
    assert "\\x1b[31mred\\x07" in line
    assert escaped("ü → 日本 …") == "ü → 日本 …"


def test_text_for_a_file_keeps_what_utf8_can_hold() -> None:
    assert storable("caf\udce9 \ud800") == "caf\\xe9 \\ud800"
    assert storable("café 日本") == "café 日本"
