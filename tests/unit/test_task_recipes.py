"""Recipes of further tasks on encoders: targets, alignment, metrics, refusals; numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from runner import metrics
from runner.compose import compose_run
from runner.errors import RequestError
from runner.preflight.check import check
from runner.recipe import Recipe, load_recipe
from runner.train.assets import build_tokenizer

TICKETS = ["billing", "login", "login", "other"]
SPELLED = ["anna", "b", "##o", "##b", "found"]


def files(tmp_path: Path, train: list[dict[str, Any]], validation: list[dict[str, Any]] | None = None) -> list[str]:
    for name, rows in (("train", train), ("dev", validation or train)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["dataset=files", f"dataset.train={tmp_path}/train.jsonl", f"dataset.validation={tmp_path}/dev.jsonl"]


def checked(*overrides: str) -> Any:
    return check(compose_run(list(overrides)), starting=False).recipe


def problems(*overrides: str) -> list[str]:
    with pytest.raises(RequestError) as caught:
        checked(*overrides)
    return [problem.line() for problem in caught.value.problems if problem.severity == "error"]


class Logits(torch.nn.Module):
    """A model that says the same whatever it is asked."""

    def __init__(self, logits: list[list[float]]) -> None:
        super().__init__()
        self.fixed = torch.tensor(logits)

    def forward(self, **inputs: torch.Tensor) -> Any:
        from types import SimpleNamespace

        return SimpleNamespace(logits=self.fixed)


def test_one_text_column_with_names_as_labels(tmp_path: Path) -> None:
    rows = [
        {"text": f"words {index}", "label": name} for index, name in enumerate(["billing", "login", "login", "other"])
    ]
    recipe = checked("recipe=text_classification", *files(tmp_path, rows))
    assert recipe.config.dataset.label_counts == {"billing": 1, "login": 2, "other": 1}
    assert recipe.model_overrides()["id2label"] == {0: "billing", 1: "login", 2: "other"}
    assert recipe.confusion([0, 1, 1, 1], [0, 1, 1, 2]) == {
        "names": ["billing", "login", "other"],
        "counts": [[1, 0, 0], [0, 2, 0], [0, 1, 0]],
    }
    assert metrics.confusion([str(index) for index in range(51)], [0], [0]) is None


def test_balanced_weights_and_the_weighted_loss(tmp_path: Path) -> None:
    """4 rows, 3 classes: weights 4/(3·1), 4/(3·2), 4/(3·1). Logits are equal, so each row loses ln 3."""
    rows = [
        {"text": f"words {index}", "label": name} for index, name in enumerate(["billing", "login", "login", "other"])
    ]
    data = files(tmp_path, rows)
    recipe = checked("recipe=text_classification", *data, "task.class_weights=balanced")
    assert recipe.weights() == pytest.approx([4 / 3, 2 / 3, 4 / 3])
    batch = {"input_ids": torch.zeros(2, 1), "labels": torch.tensor([0, 1])}
    loss = recipe.loss(Logits([[0.0] * 3] * 2), batch)
    assert float(loss) == pytest.approx((4 / 3 + 2 / 3) / 2 * 1.0986123)
    named = checked("recipe=text_classification", *data, "task.class_weights={other: 5}")
    assert named.weights() == [1.0, 1.0, 5.0]
    assert problems("recipe=text_classification", *data, "task.class_weights={othr: 5, login: -1}") == [
        "error: task.class_weights.othr=5.0: there is no such class; the classes are billing, login, other",
        "error: task.class_weights.login=-1.0: a weight is at least 0",
    ]
    assert problems("dataset=mrpc", "task.class_weights=balanced")[0].startswith(
        "error: task.class_weights=balanced: how many rows each class has is known of local files only"
    )


def test_label_smoothing_is_torchs(tmp_path: Path) -> None:
    recipe: Any = load_recipe(compose_run(["task.label_smoothing=0.1"]).config)
    logits, labels = [[2.0, 0.0], [0.0, 1.0]], torch.tensor([0, 0])
    loss = recipe.loss(Logits(logits), {"input_ids": torch.zeros(2, 1), "labels": labels})
    wanted = torch.nn.functional.cross_entropy(torch.tensor(logits), labels, label_smoothing=0.1)
    assert float(loss) == pytest.approx(float(wanted))


def test_several_labels_as_lists_and_as_text(tmp_path: Path) -> None:
    rows = [{"text": "a", "labels": ["red", "hot"]}, {"text": "b", "labels": []}, {"text": "c", "labels": "hot; old"}]
    recipe = checked("recipe=multi_label", *files(tmp_path, rows))
    assert recipe.config.dataset.label_names == ["hot", "old", "red"]
    made = recipe.features({name: [row[name] for row in rows] for name in rows[0]}, build_tokenizer(recipe.config))
    assert made["labels"] == [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    assert made["reference"] == [[0, 2], [], [0, 1]]
    unlabelled = recipe.features({"text": ["a"]}, build_tokenizer(recipe.config))
    assert unlabelled["reference"] == [None]
    predicted = recipe.predict(Logits([[3.0, -1.0, 0.5], [-1.0, -1.0, -1.0]]), {}, None, False)
    assert predicted == [[0, 2], []]
    assert recipe.samples(predicted) == [["hot", "red"], []]
    answers = recipe.answers(Logits([[0.0, -9.0, 9.0]]), {})
    assert (answers[0]["prediction"], answers[0]["probability_hot"]) == ("hot;red", 0.5)


def test_scores_of_several_labels(tmp_path: Path) -> None:
    """Of `hot` 1 right of 1 found and 2 true (F1 2/3), of `old` 0 found, 1 true (0), of `red` 1 right, 1 wrong (2/3);
    in all 2 right, 3 found, 4 true: 4/7. One row of three is right.
    """
    rows = [{"text": "a", "labels": ["red", "hot", "old"]}]
    recipe = checked("recipe=multi_label", *files(tmp_path, rows))
    scores = recipe.score([[0, 2], [2], []], [[0, 2], [0, 1], []])
    assert scores["macro_f1"] == pytest.approx((2 / 3 + 0 + 2 / 3) / 3)
    assert scores["micro_f1"] == pytest.approx(4 / 7)
    assert scores["exact_match"] == pytest.approx(2 / 3)


def test_a_number_as_target(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "score": "2.5"}, {"sentence1": "b", "score": 4}]
    recipe = checked("recipe=regression", *files(tmp_path, rows), "dataset.columns.sentence2=null")
    made = recipe.features({"sentence1": ["a", "b"], "score": ["2.5", 4]}, build_tokenizer(recipe.config))
    assert made["labels"] == made["reference"] == [2.5, 4.0]
    batch = {"labels": torch.tensor([1.0, 3.0])}
    assert float(recipe.loss(Logits([[2.0], [1.0]]), batch)) == pytest.approx((1 + 4) / 2)
    # Pearson of (1,2,3) and (1,3,2): covariance 1, variances 2 and 2. The ranks are the same numbers.
    assert recipe.score([1.0, 2.0, 3.0], [1.0, 3.0, 2.0]) == pytest.approx(
        {"pearson": 0.5, "spearman": 0.5, "mse": 2 / 3}
    )
    assert recipe.score([1.0, 1.0], [1.0, 3.0]) == {"mse": 2.0}  # a constant correlates with nothing
    bad = [{"sentence1": "a", "score": 1.0}, {"sentence1": "b", "score": "high"}, {"sentence1": "c", "score": None}]
    found = problems("recipe=regression", *files(tmp_path, bad, rows), "dataset.columns.sentence2=null")
    assert len(found) == 1
    assert "row 2 column 'score' holds 'high' where a finite number is needed (1 more rows are wrong: row 3" in found[0]


def test_the_first_token_of_a_word_carries_its_tag(tmp_path: Path) -> None:
    """`bob` is none of the tokenizer's words: [CLS] anna b ##o ##b found [SEP]."""
    rows = [{"tokens": ["Anna", "Bob", "found"], "tags": ["B-x", "I-x", "O"]}]
    recipe = checked("recipe=token_classification", *files(tmp_path, rows))
    assert recipe.config.dataset.label_names == ["B-x", "I-x", "O"]
    tokenizer = build_tokenizer(recipe.config)
    made = recipe.features({"tokens": [rows[0]["tokens"], "Anna found"], "tags": [rows[0]["tags"], None]}, tokenizer)
    assert tokenizer.convert_ids_to_tokens(made["input_ids"][0]) == [
        "[CLS]",
        "anna",
        "b",
        "##o",
        "##b",
        "found",
        "[SEP]",
    ]
    assert made["labels"][0] == [-100, 0, 1, -100, -100, 2, -100]
    assert made["reference"] == [[0, 1, 2], None]
    assert recipe.items({"labels": made["labels"][0]}) == 3
    batch = recipe.collate([{name: values[row] for name, values in made.items()} for row in (0, 1)], tokenizer)
    assert batch["labels"][1].tolist()[-3:] == [-100] * 3
    assert recipe.predict(Logits([[[0.0, 1.0, 0.0]] * 7] * 2), batch, tokenizer, False) == [[1, 1, 1], [1, 1]]


def test_entities_are_scored_as_seqeval_does_and_cut_words_as_not_found(tmp_path: Path) -> None:
    """Two entities are true; the first is found, the second lies in a word that was cut: precision 1, recall 1/2."""
    rows = [{"tokens": ["Anna", "Bob", "found", "Oslo"], "tags": ["B-x", "I-x", "O", "B-y"]}]
    recipe = checked("recipe=token_classification", *files(tmp_path, rows), "task.max_length=8")
    made = recipe.features({"tokens": [["Anna"] * 9], "tags": [["B-x"] * 9]}, build_tokenizer(recipe.config))
    assert len(made["reference"][0]) == 9
    assert sum(label != -100 for label in made["labels"][0]) == 6  # of 8 tokens two are special
    assert recipe.preparation_notes() == [
        "3 words of 1 rows were cut (task.max_length=8): they are not learned, and count as not found"
    ]
    pytest.importorskip("seqeval")
    names = recipe.config.dataset.label_names
    true = [[names.index(tag) for tag in rows[0]["tags"]]]
    assert recipe.score([true[0][:3]], true) == pytest.approx(
        {"f1": 2 / 3, "precision": 1.0, "recall": 0.5, "accuracy": 0.75}
    )


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"tokens": ["a", "b"], "tags": ["O"]}], "row 2 column 'tokens' holds 2 words, column 'tags' 1 tags"),
        ([{"tokens": [], "tags": []}], "row 2 column 'tokens' holds no words"),
        (
            [{"tokens": ["a"], "tags": [{"x": 1}]}],
            "column 'tags' holds an object where a class label is needed in row 2",
        ),
        ([{"tokens": {"a": 1}, "tags": ["O"]}], "column 'tokens' holds an object where text is needed in row 2"),
    ],
)
def test_bad_rows_of_words_are_named(rows: list[dict[str, Any]], words: str, tmp_path: Path) -> None:
    good = [{"tokens": ["a", "b"], "tags": ["B-x", "O"]}]
    found = problems("recipe=token_classification", *files(tmp_path, good + rows, good))
    assert any(words in line for line in found), found


def test_a_tag_that_training_does_not_know_is_named(tmp_path: Path) -> None:
    good = [{"tokens": ["a", "b"], "tags": ["B-x", "O"]}]
    found = problems("recipe=token_classification", *files(tmp_path, good, [{"tokens": ["a"], "tags": ["B-z"]}]))
    assert "label 'B-z' (1 rows of validation) is not among the training labels" in found[0]


@pytest.mark.parametrize("name", ["text_classification", "multi_label", "regression", "token_classification"])
def test_the_bundled_sample_has_a_test_split_without_targets(name: str) -> None:
    recipe: Recipe = checked(f"recipe={name}")
    assert recipe.config.dataset.rows == {"train": 1200, "validation": 200, "test": 100}
