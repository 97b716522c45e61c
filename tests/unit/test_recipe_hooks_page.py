"""The examples of docs/recipe_hooks.md are recipes that do what the page says, and its tables name every hook."""

from __future__ import annotations

import inspect
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runner.compose import compose_run
from runner.errors import RequestError
from runner.preflight.dataset import check_data
from runner.recipe import Recipe, load_recipe
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "recipe_hooks.md").read_text()


def example(name: str, tmp_path: Path, *overrides: str) -> Any:
    [code] = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"class {name}(" in code]
    (tmp_path / f"{name.lower()}.py").write_text(code)
    return load_recipe(compose_run([f"recipe.file={tmp_path}/{name.lower()}.py", *overrides]).config)


def test_the_tables_name_every_hook() -> None:
    told = set(re.findall(r"`(\w+)`", "\n".join(line.rpartition("|")[0] for line in PAGE.splitlines() if "|" in line)))
    own = {name for name, item in vars(Recipe).items() if not name.startswith("_")}
    helpers = {"Options", "column", "values", "texts", "length_problems"}
    assert own - helpers <= told
    methods = {name for name, item in vars(Recipe).items() if inspect.isfunction(item)}
    assert {"loss", "score", "row_problem"} <= methods


def test_the_focal_loss(tmp_path: Path) -> None:
    """Logits 0, 0: probability 1/2, loss ln 2, weight (1/2)²."""
    recipe = example("Focal", tmp_path)
    batch = {"input_ids": torch.zeros(1, 1), "labels": torch.tensor([0])}
    loss = recipe.loss(lambda **inputs: SimpleNamespace(logits=torch.zeros(1, 2)), batch)
    assert float(loss) == pytest.approx(math.log(2) / 4)


def test_lists_are_read_and_tokens_counted(tmp_path: Path) -> None:
    recipe = example("Poems", tmp_path)
    made = recipe.features({"verses": [["ab", "c"]]}, lambda texts: {"input_ids": [list(map(ord, texts[0]))]})
    assert made == {"input_ids": [[97, 98, 10, 99]]}
    assert recipe.items({"input_ids": made["input_ids"][0]}) == 3


def test_rows_and_options_are_checked(tmp_path: Path) -> None:
    for name, stars in (("reviews", 9), ("dev", 5)):
        rows = [{"text": "a", "stars": 3}, {"text": "b", "stars": stars}]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ["dataset=files", f"dataset.train={tmp_path}/reviews.jsonl", f"dataset.validation={tmp_path}/dev.jsonl"]
    recipe = example("Stars", tmp_path, *data, "task.good=7")
    [told] = [problem.line() for problem in check_data(recipe.config, recipe) if problem.severity == "error"]
    assert "row 2 column 'stars' holds 9, not 1 to 5" in told
    [wrong] = recipe.option_problems()
    assert wrong.line() == "error: task.good=7: there are 5 stars; use task.good=5"
    with pytest.raises(RequestError, match="it has best, good"):
        example("Stars", tmp_path, "task.beste=3")
