"""The checks of columns, texts and labels before a run, each on a small file of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from runner.compose import compose_run
from runner.config.schema import RunConfig
from runner.data.source import Holdout, SplitSource, content_hashes
from runner.errors import Problem, RequestError
from runner.preflight.changed_data import changed_data
from runner.preflight.check import check

PAIRS = [(f"A pilot number {i} was late .", f"The pilot {i} came late .", i % 2) for i in range(40)]
HEADER = "sentence1,sentence2,label"


def table(path: Path, header: str = HEADER, labels: list[object] | None = None) -> Path:
    cells = [(a, b, c if labels is None else labels[i % len(labels)]) for i, (a, b, c) in enumerate(PAIRS)]
    path.write_text(header + "\n" + "".join(f"{a},{b},{c}\n" for a, b, c in cells))
    return path


def objects(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def checked(tmp_path: Path, train: Path, validation: Path | None, *more: str) -> tuple[RunConfig | None, list[Problem]]:
    """The configuration, where nothing is wrong, and what was found."""
    where = [f"cache_dir={tmp_path}/cache", f'hydra.run.dir="{tmp_path}/run"', "scheduler.warmup_steps=0"]
    named = [f'dataset.train="{train}"', *([f'dataset.validation="{validation}"'] if validation else [])]
    try:
        found = check(compose_run(["launcher=ddp", "dataset=files", *named, *where, *more]), starting=False)
    except RequestError as error:
        return None, error.problems
    return found.config, found.notices


def lines(problems: list[Problem], severity: str = "error") -> list[str]:
    return [problem.line() for problem in problems if problem.severity == severity]


@pytest.mark.parametrize(
    ("train", "validation", "said", "fix"),
    [
        ([-1, 0, 1, 1], None, "the label -1 in 10 of 40 rows of the training split", "dataset.drop_bad_rows=true"),
        (
            ["", 0, 1, 1],
            None,
            "column 'label' has no label in 10 of 40 rows (row 1, row 5, row 9",
            "drop_bad_rows=true",
        ),
        ([2.75, 3.0, 3.25], None, "numbers on a scale: 2.75, 3, 3.25", "dataset.columns.label=COLUMN"),
        ([f"id{i}" for i in range(40)], None, "holds 40 different values in 40 rows", "dataset.columns.label=COLUMN"),
        (["yes", "no"], [0, 1], "its labels are numbers (0, 1)", """dataset.label_names=["no","yes"]"""),
        (
            ["not the same", "same"],
            [0, 1],
            "its labels are numbers",
            """'dataset.label_names=["not the same","same"]'""",
        ),
        ([0, 1], ["yes", "no"], "label 'yes' (20 rows of validation) is not among the training labels 0, 1", "remove"),
        ([1], None, "only one label in the training split: '1'", "two or more"),
    ],
)
def test_labels_that_are_refused(train, validation, said: str, fix: str, tmp_path: Path):
    given = table(tmp_path / "train.csv", labels=train)
    other = table(tmp_path / "dev.csv", labels=validation) if validation else table(tmp_path / "dev.csv", labels=[0, 1])
    config, problems = checked(tmp_path, given, other)
    assert config is None
    assert any(said in line and fix in line for line in lines(problems)), lines(problems)


def test_more_classes_than_the_limit_need_a_word(tmp_path: Path):
    train = tmp_path / "train.csv"
    train.write_text("sentence1,label\n" + "".join(f"text {i} here,c{i % 250}\n" for i in range(1000)))
    _, problems = checked(tmp_path, train, train)
    (line,) = lines(problems)
    assert "holds 250 different labels (c0, c1, c10, c100, …), more than dataset.max_classes=200" in line
    assert line.endswith("set dataset.max_classes=250")
    config, _ = checked(tmp_path, train, train, "dataset.max_classes=250")
    assert config is not None
    assert len(config.dataset.label_names or []) == 250


def test_which_number_is_which_name_can_be_said(tmp_path: Path):
    train, dev = table(tmp_path / "t.csv", labels=["yes", "no"]), table(tmp_path / "d.csv", labels=[0, 1])
    config, _ = checked(tmp_path, train, dev, "dataset.label_names=[yes,no]")
    assert config is not None
    assert config.dataset.label_names == ["yes", "no"]


def test_hidden_labels_in_a_part_of_the_validation_rows_are_said(tmp_path: Path):
    dev = table(tmp_path / "d.csv", labels=[-1, 1, 0, -1])
    config, problems = checked(tmp_path, table(tmp_path / "t.csv"), dev)
    assert config is not None
    assert "the label is hidden (-1) in 20 of 40 rows: scores are over the other 20" in lines(problems, "warning")[0]


def test_bad_rows_are_counted_and_can_be_left_out(tmp_path: Path):
    rows = [f"{a},{b},{c}" for a, b, c in PAIRS]
    rows[3], rows[7], rows[9] = "x,y,1,more", "only one", ",no first sentence,1"
    rows[11] = "text,text,-1"
    train = tmp_path / "t.csv"
    train.write_text("\n".join([HEADER, *rows, ""]))
    _, problems = checked(tmp_path, train, table(tmp_path / "d.csv"))
    (line,) = [line for line in lines(problems) if "cannot be read" in line]
    assert "2 rows cannot be read" in line
    assert "line 5 has 4 cells" in line
    assert "line 9 has 1 cells" in line
    config, problems = checked(tmp_path, train, tmp_path / "d.csv", "dataset.drop_bad_rows=true")
    assert config is not None
    assert config.dataset.rows == {"train": 36, "validation": 40}
    assert "4 rows were left out, as dataset.drop_bad_rows says, 36 are used" in lines(problems, "notice")[0]


def test_a_file_of_bad_rows_only_says_so(tmp_path: Path):
    train = tmp_path / "t.csv"
    train.write_text(f"{HEADER}\na,b,1,\na,b,0,\n")
    _, problems = checked(tmp_path, train, table(tmp_path / "d.csv"))
    assert "this split has no rows: 2 rows are bad" in lines(problems)[0]
    assert "line 2 has 4 cells, the header 3" in lines(problems)[0]


def test_labels_that_differ_in_case_are_said(tmp_path: Path):
    train = table(tmp_path / "t.csv", labels=["yes", "no", "Yes", "no"])
    config, problems = checked(tmp_path, train, train)
    assert config is not None
    assert "labels that differ in case only are different classes: 'Yes', 'yes'" in lines(problems, "warning")[0]


def test_rows_of_a_test_split_are_never_left_out(tmp_path: Path):
    test = tmp_path / "test.csv"
    test.write_text(f"{HEADER}\na,b,1\n,b,0\n")
    train = table(tmp_path / "t.csv")
    config, problems = checked(tmp_path, train, train, f"dataset.test={test}", "dataset.drop_bad_rows=true")
    assert config is None
    assert "column 'sentence1' has no text in row 2" in lines(problems)[0]


@pytest.mark.parametrize(
    ("header", "fixes"),
    [
        (
            "Sentence1,Sentence 2,LABEL",
            ["sentence1=Sentence1", "'dataset.columns.sentence2=\"Sentence 2\"'", "label=LABEL"],
        ),
        ("text_a,text_b,gold", ["dataset.columns.sentence1=text_a", "sentence2=text_b", "dataset.columns.label=gold"]),
    ],
)
def test_other_names_of_columns_give_overrides_that_work(header: str, fixes: list[str], tmp_path: Path):
    train = table(tmp_path / "t.csv", header)
    _, problems = checked(tmp_path, train, train)
    told = " ".join(problem.line() for problem in problems)
    assert all(fix in told for fix in fixes), told
    names = dict(zip(("sentence1", "sentence2", "label"), header.split(","), strict=True))
    config, _ = checked(tmp_path, train, train, *[f'dataset.columns.{name}="{own}"' for name, own in names.items()])
    assert config is not None


@pytest.mark.parametrize("header", ["text,channel", "text,id", "channel,comment"])
def test_a_column_is_not_guessed_by_its_place(header: str, tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text(header + "\n" + "".join(f"some text {i},{'mail' if i % 2 else 'web'}\n" for i in range(20)))
    _, problems = checked(tmp_path, path, path)
    (label, *_) = [problem for problem in problems if problem.key == "dataset.columns.label"]
    assert label.fix == "set dataset.columns.label=COLUMN"


def test_a_column_that_only_one_split_has_is_an_error(tmp_path: Path):
    train, dev = table(tmp_path / "t.csv"), table(tmp_path / "d.csv", "sentence1,second,label")
    for pair in ((train, dev), (dev, train)):
        config, problems = checked(tmp_path, *pair)
        assert config is None
        assert "dataset.columns.sentence2=null" in lines(problems)[0]
    config, _ = checked(tmp_path, train, dev, "dataset.columns.sentence2=null")
    assert config is not None


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("text_a,sentence2,label", "sentence1: in train there is this column, in validation there is not"),
        ("sentence1,sentence2,gold", "rename 'gold' of validation to 'label'"),
        ("Sentence1,sentence2,label", "rename 'Sentence1' of validation to 'sentence1'"),
    ],
)
def test_no_override_is_advised_where_splits_name_a_column_differently(header: str, said: str, tmp_path: Path):
    _, problems = checked(tmp_path, table(tmp_path / "t.csv"), table(tmp_path / "d.csv", header))
    [line] = lines(problems)
    assert said in line
    assert "set dataset.columns" not in line


@pytest.mark.parametrize("url", ["https://x.org/d.csv?a=1", "s3://bucket/d.csv", "hf://datasets/a/b.parquet"])
def test_an_address_is_no_file(url: str, tmp_path: Path):
    _, problems = checked(tmp_path, Path("unused"), table(tmp_path / "d.csv"), f'dataset.train="{url}"')
    [line] = lines(problems)
    assert "this is an address, not a file; download it, and set dataset.train=FILE" in line


def test_a_file_without_a_header_is_told_so(tmp_path: Path):
    rows = table(tmp_path / "t.csv").read_text().partition("\n")[2]
    (tmp_path / "t.csv").write_text(rows)
    _, problems = checked(tmp_path, tmp_path / "t.csv", tmp_path / "t.csv")
    assert all("write a line with the names of the columns first" in line for line in lines(problems))


def test_a_name_with_invisible_characters_is_to_be_renamed(tmp_path: Path):
    train = table(tmp_path / "t.csv", "\u200bsentence1,sentence2,label")
    _, problems = checked(tmp_path, train, train)
    [line] = lines(problems)
    assert "rename it to 'sentence1' in the file" in line


def test_a_header_of_20000_columns_gives_a_bounded_message(tmp_path: Path):
    wide = tmp_path / "wide.csv"
    wide.write_text(",".join(f"column_{i}" for i in range(20_000)) + "\n" + ",".join("x" * 20_000) + "\n")
    started = time.monotonic()
    _, problems = checked(tmp_path, wide, wide)
    assert time.monotonic() - started < 5  # 10,000 names were compared with each other for as many seconds
    assert sum(len(problem.line()) for problem in problems) < 6000
    assert "and 19,988 more" in lines(problems)[0]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "a truth value (true or false)"),
        ({"en": "a"}, "an object"),
        (["a", "b"], "a list"),
        (float("inf"), "a number that is not finite"),
        (float("nan"), "has no text"),
        (None, "has no text"),
        ("  ", "has no text"),
        ([{"role": "user", "content": "hi"}], "recipe=chat_sft"),
        ([{"from": "human", "value": "hi"}], "recipe=chat_sft"),
    ],
)
def test_what_is_no_text_is_refused_with_its_row(value: object, kind: str, tmp_path: Path):
    rows = [{"sentence1": a, "sentence2": b, "label": c} for a, b, c in PAIRS]
    rows[4]["sentence2"] = value
    config, problems = checked(tmp_path, objects(tmp_path / "t.jsonl", rows), table(tmp_path / "d.csv"))
    assert config is None
    (line,) = lines(problems)
    assert kind in line
    assert "row 5" in line


def test_numbers_are_read_as_text_and_said_once(tmp_path: Path):
    rows = [{"sentence1": i if i in (3, 8) else a, "sentence2": b, "label": c} for i, (a, b, c) in enumerate(PAIRS)]
    config, problems = checked(tmp_path, objects(tmp_path / "t.jsonl", rows), table(tmp_path / "d.csv"))
    assert config is not None
    (line,) = lines(problems, "notice")
    assert "column 'sentence1' holds numbers, read as text, in 2 of 40 rows (row 4, row 9)" in line


def test_patterns_and_their_order(tmp_path: Path):
    for name in ("b", "a", "c"):
        table(tmp_path / f"{name}.csv")
    config, _ = checked(tmp_path, tmp_path / "[ab].csv", tmp_path / "c.csv")
    assert config is not None
    assert config.dataset.rows == {"train": 80, "validation": 40}
    _, problems = checked(tmp_path, tmp_path / "*.tsv", tmp_path / "c.csv")
    assert "no file fits this pattern" in lines(problems)[0]


@pytest.mark.parametrize("key", ["delimiter=tab", "quoting=none"])
def test_how_cells_are_cut_has_no_effect_without_cells(key: str, tmp_path: Path):
    rows = [{"sentence1": a, "sentence2": b, "label": c} for a, b, c in PAIRS]
    path = objects(tmp_path / "t.jsonl", rows)
    _, problems = checked(tmp_path, path, path, f"dataset.{key}")
    assert "this has no effect: only .csv and .tsv files are cut into cells" in lines(problems)[0]


def test_validation_rows_are_drawn_of_each_class_alike_and_always_the_same():
    classes = ["a"] * 80 + ["b"] * 20
    held = Holdout(0.1, 42, True).drawn(classes)
    assert (sum(index < 80 for index in held), sum(index >= 80 for index in held)) == (8, 2)
    assert held == Holdout(0.1, 42, False).drawn(classes)
    assert held != Holdout(0.1, 43, True).drawn(classes)
    assert len(Holdout(0.001, 42, True).drawn(classes)) == 1


def test_held_out_rows_are_no_training_rows(tmp_path: Path):
    train = table(tmp_path / "t.csv")
    parts = {}
    for launcher, seed in (("ddp", 1), ("deepspeed", 2)):
        config, _ = checked(
            tmp_path, train, None, "dataset.validation_fraction=0.25", f"launcher={launcher}", f"train.seed={seed}"
        )
        assert config is not None
        assert config.dataset.rows == {"train": 30, "validation": 10}
        from runner.recipe import load_recipe

        recipe = load_recipe(config)
        sources = {split: SplitSource.of(recipe, split) for split in ("train", "validation")}
        rows = {split: [row["sentence1"] for _, row in s.selected(s.held_out())] for split, s in sources.items()}
        assert not set(rows["train"]) & set(rows["validation"])
        assert sorted(rows["train"] + rows["validation"]) == sorted(a for a, _, _ in PAIRS)
        parts[launcher] = rows
    assert parts["ddp"] == parts["deepspeed"]


def test_a_validation_split_is_named_or_held_out(tmp_path: Path):
    train = table(tmp_path / "t.csv")
    _, problems = checked(tmp_path, train, train, "dataset.validation_fraction=0.25")
    assert "add dataset.validation=null" in lines(problems)[0]
    _, problems = checked(tmp_path, train, None)
    assert "dataset.validation_fraction=0.1" in lines(problems)[0]


def test_changed_data_are_refused_at_resume_and_touched_data_are_not(tmp_path: Path):
    train, dev = table(tmp_path / "t.csv"), table(tmp_path / "d.csv")
    config, _ = checked(tmp_path, train, dev)
    assert config is not None
    before = content_hashes(config.dataset)
    train.touch()
    assert changed_data(config, before) == []
    table(train, labels=[1, 0])  # all labels flipped: as many rows, as many bytes
    (problem,) = changed_data(config, before)
    assert problem.key == "dataset.train"
    assert f"the train split has changed since the run began: {train} holds other bytes" in problem.why
    table(train)
    dev.write_text(dev.read_text().replace("late", "soon", 1))
    (problem,) = changed_data(config, before)
    assert problem.key == "dataset.validation"
    assert changed_data(config, None) == []
