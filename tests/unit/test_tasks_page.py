"""Commands of docs/tasks.md: each passes all checks; the long tests run them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from runner.compose import compose_run
from runner.preflight.check import check
from tests.conftest import ROOT

OWN_FILES = "body,queue\nThe boat was found by Anna,a\nBoris built the shop,b\n"


def commands() -> list[str]:
    text = (ROOT / "docs" / "tasks.md").read_text()
    found = re.findall(r"^(?:\| `)?python -m runner (recipe=[^`\n]*)", text, re.MULTILINE)
    return [command.strip() for command in found]


def test_the_page_has_every_recipe_on_encoders() -> None:
    from runner.config.catalogue import recipes_for

    assert {word.split()[0].removeprefix("recipe=") for word in commands()} == {*recipes_for("encoder")} - {
        "deberta_mrpc"
    }


@pytest.mark.parametrize("command", commands())
def test_a_command_passes_all_checks(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "token_classification" in command:
        pytest.importorskip("seqeval")  # an extra; without it the check says so
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text(OWN_FILES)
    monkeypatch.chdir(tmp_path)
    found = check(compose_run(shlex.split(command)), starting=False)
    assert [problem.line() for problem in found.notices if problem.severity == "warning"] == []


@pytest.mark.soak
@pytest.mark.parametrize(
    "command",
    [
        command
        if command.endswith(("multi_label", "token_classification", "balanced task.label_smoothing=0.1"))
        else pytest.param(command, marks=pytest.mark.variant)
        for command in commands()
        if "bert_base" not in command
    ],
)
@pytest.mark.parametrize("method", ["zero_stage=3", pytest.param("launcher=ddp", marks=pytest.mark.variant)])
def test_a_command_runs_and_learns(command: str, method: str, real_run: Any, tmp_path: Path) -> None:
    done = real_run(*shlex.split(command), method, run_dir=tmp_path / "run")
    assert done.returncode == 0, done.text
    record = done.record
    assert record["best"]["value"] > 0.9
    assert record["test"] == {"metrics": {}, "rows": 100, "scored": 0}
    assert len((tmp_path / "run" / "predictions" / "test.jsonl").read_text().splitlines()) == 100
    assert record["epochs"][-1]["eval_rows"] == record["epochs"][-1]["eval_rows_scored"] == 200
    if "text_classification" in command:
        assert sum(map(sum, record["confusion"]["counts"])) == 200
