"""DPO: pairs of conversations, the loss on numbers worked out by hand, refusals; launchers agree in the long test."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runner.compose import compose_run
from runner.errors import RequestError
from runner.preflight.check import check
from runner.recipe import load_recipe
from runner.train.assets import build_tokenizer
from tests.interrupting import LAUNCHERS

GOOD = {"prompt": "What is red?", "chosen": "The coat.", "rejected": "Hello."}


def recipe_of(*overrides: str) -> Any:
    return load_recipe(compose_run(["recipe=dpo", *overrides]).config)


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_texts_and_messages_give_the_same_tokens_and_only_the_answers_are_labelled() -> None:
    recipe = recipe_of()
    tokenizer = build_tokenizer(recipe.config)
    recipe.adjust_tokenizer(tokenizer)
    turns = {
        "prompt": [{"role": "user", "content": GOOD["prompt"]}],
        **{name: [{"role": "assistant", "content": GOOD[name]}] for name in ("chosen", "rejected")},
    }
    whole = {name: turns["prompt"] + turns[name] for name in ("chosen", "rejected")}
    made = [recipe.features({name: [value] for name, value in row.items()}, tokenizer) for row in (GOOD, turns, whole)]
    assert made[0] == made[1] == made[2]
    for ids, labels, answer in (
        (made[0]["input_ids"][0], made[0]["labels"][0], "The coat."),
        (made[0]["rejected_ids"][0], made[0]["rejected_labels"][0], "Hello."),
    ):
        learned = [token for token, label in zip(ids, labels, strict=True) if label != -100]
        assert tokenizer.decode(learned) == f"{answer}<|end|>"
    row = {name: values[0] for name, values in made[0].items()}
    assert recipe.length(row) == len(row["input_ids"]) + len(row["rejected_ids"])
    batch = recipe.collate([row, row], tokenizer)
    assert batch["input_ids"].shape == (4, max(len(row["input_ids"]), len(row["rejected_ids"])))
    assert batch["input_ids"][0].tolist()[: len(row["input_ids"])] == row["input_ids"]
    assert batch["labels"][2].tolist()[: len(row["rejected_labels"])] == row["rejected_labels"]


def test_a_pair_cut_before_an_answer_is_left_out_and_counted() -> None:
    recipe = recipe_of("task.max_length=8")
    tokenizer = build_tokenizer(recipe.config)
    recipe.adjust_tokenizer(tokenizer)
    assert recipe.features({name: [value * 5] for name, value in GOOD.items()}, tokenizer)["input_ids"] == []
    assert recipe.preparation_notes()[0] == "1 of 1 pairs are left out: an answer lies behind task.max_length"


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_on_numbers_worked_out_by_hand(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs. Policy log-probabilities: chosen −1, −4; rejected −3, −2. Reference: −2, −2; −2, −3.
    With beta 0.5 the rewards are 0.5, −1 and −0.5, 0.5; the margins 1 and −1.5.
    """
    recipe = recipe_of("task.beta=0.5", f"task.label_smoothing={smoothing}")
    import sys

    module = sys.modules[type(recipe).__module__]
    said = iter([torch.tensor([-2.0, -2.0, -2.0, -3.0]), torch.tensor([-1.0, -4.0, -3.0, -2.0])])
    monkeypatch.setattr(module, "answer_log_probabilities", lambda model, batch: next(said))
    monkeypatch.setattr(module, "disabled_adapter", lambda model: torch.no_grad())
    found = recipe.predict(torch.nn.Identity(), {}, None, False)
    wanted = [
        -(1 - smoothing) * math.log(sigmoid(margin)) - smoothing * math.log(sigmoid(-margin)) for margin in (1.0, -1.5)
    ]
    assert [row[0] for row in found] == pytest.approx(wanted)
    assert [row[1:] for row in found] == [[0.5, -0.5], [-1.0, 0.5]]
    assert recipe.score(found, []) == pytest.approx(
        {"loss": sum(wanted) / 2, "reward_accuracy": 0.5, "reward_margin": -0.25}
    )


def test_log_probabilities_are_sums_over_the_labelled_tokens() -> None:
    """Three tokens of two: the model gives the odds 3 : 1 to token 1 everywhere. Labelled are positions 1 and 2."""
    import sys

    module = sys.modules[type(recipe_of()).__module__]
    logits = torch.tensor([[[0.0, math.log(3)]] * 3])
    batch = {"input_ids": torch.tensor([[0, 1, 0]]), "labels": torch.tensor([[-100, 1, 0]])}
    found = module.answer_log_probabilities(lambda **inputs: SimpleNamespace(logits=logits), batch)
    assert found.tolist() == pytest.approx([math.log(3 / 4) + math.log(1 / 4)])


def problems(*overrides: str) -> list[str]:
    with pytest.raises(RequestError) as caught:
        check(compose_run(["recipe=dpo", *overrides]), starting=False)
    return [problem.line() for problem in caught.value.problems if problem.severity == "error"]


def test_without_an_adapter_there_is_no_reference() -> None:
    assert problems("adapter=none") == [
        "error: adapter=none: the reference of DPO is the model with its adapter switched off, and this run has none; "
        "use adapter=lora"
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**GOOD, "rejected": GOOD["chosen"]}, "row 2 the chosen and the rejected answer are the same"),
        ({**GOOD, "chosen": ""}, "row 2 column 'chosen' is empty or missing"),
        ({**GOOD, "rejected": 3}, "row 2 column 'rejected': "),
        ({**GOOD, "prompt": [{"role": "bard", "content": "a"}]}, "row 2 column 'chosen': "),
    ],
)
def test_bad_pairs_are_named(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    for name, rows in (("train", [GOOD, row]), ("dev", [GOOD])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in rows))
    data = ["dataset=files", f"dataset.train={tmp_path}/train.jsonl", f"dataset.validation={tmp_path}/dev.jsonl"]
    assert words in problems(*data)[0]


@pytest.mark.soak
def test_launchers_agree_and_the_first_loss_is_that_of_the_reference(real_run: Any, tmp_path: Path) -> None:
    """Before the first step the model is its reference: every margin is 0, the loss ln 2."""
    steps = {}
    for launcher in ("ddp", "zero0", "zero1", "zero2", "zero3"):
        done = real_run(
            "recipe=dpo", *LAUNCHERS[launcher], "train.log_every=1", "train.epochs=1", run_dir=tmp_path / launcher
        )
        assert done.returncode == 0, done.text
        steps[launcher] = [line["loss"] for line in done.steps]
        assert done.record["metrics"]["reward_accuracy"] == 1.0
    assert steps["ddp"][0] == pytest.approx(math.log(2), abs=1e-6)
    for losses in steps.values():
        assert losses == pytest.approx(steps["ddp"], abs=1e-4)
