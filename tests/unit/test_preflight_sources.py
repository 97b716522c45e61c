"""Data, models, metrics and folders of a run, checked before it starts; no torch, no network."""

from __future__ import annotations

import json
import os
import struct
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import paths
from runner.compose import compose_run
from runner.config.inputs import ModelConfig
from runner.config.schema import RunConfig
from runner.engines.deepspeed.nvme import swap_bytes
from runner.errors import Problem, RequestError
from runner.memory.model_size import kept_checkpoints, parameter_count, state_bytes
from runner.preflight import assets, software
from runner.preflight import output_folders as checked_places
from runner.preflight.check import check
from tests.conftest import ROOT

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(ROOT)
    for name in (
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_TOKEN_PATH",
        "HF_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_DATASETS_OFFLINE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    asked = assets.hub_reachable
    asked.cache_clear()
    yield
    asked.cache_clear()


def found(tmp_path: Path, *overrides: str) -> list[Problem]:
    try:
        return check(compose_run([*overrides, f'hydra.run.dir="{tmp_path}/run"'])).notices
    except RequestError as error:
        return error.problems


def one(problems: list[Problem], words: str) -> Problem:
    matching = [problem for problem in problems if words in problem.line()]
    assert len(matching) == 1, [problem.line() for problem in problems]
    return matching[0]


def data(tmp_path: Path, train: str, validation: str = "sentence1,sentence2,label\na,b,0\nc,d,1\n") -> list[str]:
    (tmp_path / "train.csv").write_text(train, encoding="utf-8")
    (tmp_path / "validation.csv").write_text(validation, encoding="utf-8")
    return ["dataset=files", f'dataset.train="{tmp_path}/train.csv"', f'dataset.validation="{tmp_path}/validation.csv"']


GOOD = "sentence1,sentence2,label\na,b,0\nc,d,1\n"


def test_two_columns_with_one_name(tmp_path: Path) -> None:
    """Which of two columns of one name was meant cannot be known."""
    problems = found(tmp_path, *data(tmp_path, "sentence1,sentence1 ,label\na,b,0\nc,d,1\n"))
    assert "two columns have the same name: 'sentence1'" in one(problems, "same name").why


def test_the_label_among_the_texts(tmp_path: Path) -> None:
    """Mapped by mistake, the model would learn the label from itself."""
    assert (
        "labels as well"
        in one(
            found(tmp_path, *data(tmp_path, GOOD), "dataset.columns.sentence2=label"), "dataset.columns.sentence2"
        ).why
    )


def test_a_second_file_without_a_column(tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("sentence1,label\na,0\n")
    problems = found(tmp_path, *data(tmp_path, GOOD), f'dataset.train=["{tmp_path}/train.csv","{tmp_path}/more.csv"]')
    assert "'sentence2'" in one(problems, "more.csv").why


FINE = '{"sentence1":"a","sentence2":"b","label":0}\n{"sentence1":"c","sentence2":"d","label":1}\n'


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"sentence2":"b","label":1}', "column 'sentence1' has no text in row 3"),
        ('{"sentence1":"a","label":1}', "column 'sentence2' has no text in row 3"),
        ('{"sentence1":"a","sentence2":"b"}', "column 'label' has no label in row 3"),
        (
            '{"sentence1":["x"],"sentence2":"b","label":1}',
            "column 'sentence1' holds a list where text is needed in row 3",
        ),
        (
            '{"sentence1":"a","sentence2":{"k":1},"label":1}',
            "column 'sentence2' holds an object where text is needed in row 3",
        ),
        (
            '{"sentence1":"a\\ud800","sentence2":"b","label":1}',
            "column 'sentence1' holds text with half a character (a lone surrogate such as \\ud800) where text is "
            "needed in row 3",
        ),
        (
            '{"sentence1":"a","sentence2":"b","label":[1]}',
            "column 'label' holds a list where a class label is needed in row 3",
        ),
    ],
)
def test_rows_unlike_the_others(row: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(FINE + row + "\n")
    problem = one(found(tmp_path, *data(tmp_path, GOOD), f'dataset.train="{tmp_path}/train.jsonl"'), "row 3")
    assert (problem.key, problem.severity, problem.why) == ("dataset.train", "error", said)


def test_a_dialogue_may_be_a_list_of_turns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"texts":["a","b"],"labels":"c"}\n{"texts":"a","labels":["c"]}\n')
    problems = found(
        tmp_path,
        "recipe=blenderbot_mudoconv",
        "model=blenderbot_tiny",
        "dataset=files",
        f'dataset.train="{tmp_path}/a.jsonl"',
        f'dataset.validation="{tmp_path}/a.jsonl"',
    )
    assert [p.why for p in problems if p.key == "dataset.train"] == [
        "column 'labels' holds a list where text is needed in row 2"
    ]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("dataset.label_names=[a]", "do not fit the labels of the training split: 0, 1"),
        ("dataset.label_names=[a,a]", "a name stands there twice: 'a'"),
        ("dataset.columns.foo=x", "it reads sentence1, sentence2, label"),
        ("dataset.columns.sentense1=x", "did you mean dataset.columns.sentence1?"),
    ],
)
def test_names_that_do_not_fit(typed: str, said: str, tmp_path: Path) -> None:
    assert one(found(tmp_path, *data(tmp_path, GOOD), typed), said).key == typed.partition("=")[0]


def test_class_names_where_there_are_no_classes(tmp_path: Path) -> None:
    problem = one(
        found(tmp_path, "recipe=gpt2_wikitext", "model=gpt2_tiny", "dataset.label_names=[a,b]"), "label_names"
    )
    assert "has no class labels" in problem.why
    assert not [p for p in found(tmp_path, *data(tmp_path, GOOD), "dataset.label_names=[a,b]") if p.severity == "error"]


def test_a_fifo_is_no_data(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    problem = one(found(tmp_path, *data(tmp_path, GOOD), f'dataset.train="{tmp_path}/pipe.csv"'), "regular")
    assert (problem.key, "did you mean" in problem.fix) == ("dataset.train", False)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    assert not [p for p in found(tmp_path, *data(tmp_path, "\ufeff" + GOOD)) if p.severity == "error"]


def write_weights(folder: Path, shapes: dict[str, list[int]]) -> None:
    header = json.dumps(
        {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    ).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def test_a_head_for_other_labels_is_named(tmp_path: Path) -> None:
    """A checkpoint with another number of labels: its head is replaced, and the run says so before the start."""
    folder = tmp_path / "model"
    folder.mkdir()
    facts = {
        "model_type": "deberta-v2",
        "architectures": ["DebertaV2ForSequenceClassification"],
        "id2label": {"0": "a", "1": "b", "2": "c"},
    }
    (folder / "config.json").write_text(json.dumps(facts))
    write_weights(folder, {"x": [2, 2]})
    problem = one(found(tmp_path, f"model.path={folder}", "model.init=pretrained"), "head")
    assert problem.severity == "notice"
    assert "3 labels, the data has 2" in problem.why


def test_a_gated_model_without_a_token(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(assets, "hub_reachable", lambda: True)
    gated = (
        "model.hub_id=some/gated",
        "model.init=pretrained",
        "model.gated=true",
        "model.tokenizer=bundled:deberta_tiny",
    )
    problem = one(found(tmp_path, *gated), "gated")
    assert "hf auth login" in problem.fix
    assert "https://huggingface.co/some/gated" in problem.fix
    monkeypatch.setattr(assets, "check_access", lambda wanted: [])  # asked of a small hub in test_hub_access.py
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    assert not found(tmp_path, *gated)
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf_x")
    assert not found(tmp_path, *gated)


def test_a_mirror_that_does_not_answer_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert (
        "(http://127.0.0.1:9)"
        in one(
            found(tmp_path, "model.hub_id=some/model", "model.init=pretrained", "model.tokenizer=bundled:deberta_tiny"),
            "weights",
        ).why
    )


def test_metrics_come_from_installed_libraries(tmp_path: Path, monkeypatch) -> None:
    """."""
    monkeypatch.setattr(software, "is_installed", lambda module: module != "sacrebleu")
    seq2seq = ("recipe=blenderbot_mudoconv", "model=blenderbot_tiny", "dataset=dialogue_sample")
    assert one(found(tmp_path, *seq2seq), "sacrebleu").fix == "pip install sacrebleu"
    assert "accuracy, f1" in one(found(tmp_path, "recipe.metric_for_best=bleu"), "metric_for_best").why


def test_where_everything_comes_from(tmp_path: Path) -> None:
    """A folder, a commit of the hub, or a bundled name, for the record."""
    config = RunConfig()
    config.model.hub_id, config.model.tokenizer = "some/model", "bundled:deberta_tiny"
    snapshots = tmp_path / "hf" / "hub" / "models--some--model"
    (snapshots / "refs").mkdir(parents=True)
    assert assets.resolved_assets(config)["weights"] == {"source": "hub", "name": "some/model", "revision": None}
    (snapshots / "refs" / "main").write_text("0123abcd")
    assert assets.resolved_assets(config)["weights"]["revision"] == "0123abcd"
    assert assets.resolved_assets(config)["tokenizer"] == {"source": "bundled", "name": "deberta_tiny"}
    config.model.path = str(tmp_path)
    assert assets.resolved_assets(config)["weights"] == {"source": "folder", "path": str(tmp_path)}


def config_of(**sections: dict[str, object]) -> RunConfig:
    return RunConfig.model_validate(sections)


def test_parameters_are_read_from_the_files(tmp_path: Path) -> None:
    write_weights(tmp_path, {"a": [3, 4], "b": [5]})
    assert parameter_count(ModelConfig(path=str(tmp_path))) == 17


def test_state_bytes_by_method() -> None:
    """Weights + Adam under DDP: 12 a parameter; a master copy more at ZeRO 1–3 (16), of which weights in bf16 take 2
    less (14).
    """
    ddp = config_of(launcher={"name": "ddp"}, zero={"stage": 0})
    assert state_bytes(ddp, 100) == 1200
    assert state_bytes(config_of(precision={"name": "fp32"}), 100) == 1600
    assert state_bytes(config_of(precision={"name": "bf16"}), 100) == 1400
    assert state_bytes(config_of(precision={"name": "fp32"}, zero={"stage": 0}), 100) == 1200
    assert swap_bytes(config_of(offload={"optimizer": "nvme", "params": "nvme"}), 100) == 1400
    assert swap_bytes(config_of(offload={"optimizer": "nvme"}), 100) == 1200


def test_checkpoints_on_disk_at_once() -> None:
    """The kept ones and the one being written; never more than the run writes."""
    assert kept_checkpoints(RunConfig()) == 0
    assert kept_checkpoints(config_of(checkpoint={"every_steps": 10})) == 3
    assert kept_checkpoints(config_of(checkpoint={"every_steps": 10, "keep_best": True, "keep_last": 4})) == 6
    assert kept_checkpoints(config_of(checkpoint={"every_steps": 10}, train={"max_steps": 20})) == 2
    assert kept_checkpoints(config_of(checkpoint={"every_steps": 10}, mode="evaluate")) == 0


def test_checkpoints_that_do_not_fit(tmp_path: Path, monkeypatch) -> None:
    """305,154 parameters; three checkpoints of 16 bytes each and a model of 4 do not go into 10 MiB."""
    monkeypatch.setattr(checked_places.shutil, "disk_usage", lambda path: Usage(2**40, 0, 10 * 2**20))
    asked = ("checkpoint.every_steps=10",)
    problem = one(found(tmp_path, *asked), "3 checkpoints of")
    assert problem.severity == "error"
    assert "about 4." in problem.why
    assert "free are 10.0 MiB on the volume" in problem.why
    assert "checkpoint.keep_last=1" in problem.fix
    assert one(found(tmp_path, *asked, "checkpoint.check_space=false"), "3 checkpoints of").severity == "warning"
    assert not [p for p in found(tmp_path) if p.severity == "error"]  # the model alone fits


def test_little_room_is_a_warning_that_names_the_volume(tmp_path: Path, monkeypatch) -> None:
    """One line a volume."""
    monkeypatch.setattr(checked_places.shutil, "disk_usage", lambda path: Usage(2**40, 0, 500 * 2**20))
    problem = one(found(tmp_path), "only 500.0 MiB free")
    assert problem.severity == "warning"
    for words in ("tokenised data", "hub", "temporary files", "this run", "cache_dir=DIR"):
        assert words in problem.line()


def test_one_setting_moves_every_cache(tmp_path: Path, monkeypatch) -> None:
    """Each library's own variable, too; the token stays where it is."""
    monkeypatch.setenv("HF_HUB_CACHE", "/elsewhere")
    variables = paths.cache_variables(tmp_path)
    assert variables["HF_HUB_CACHE"] == str(tmp_path / "huggingface" / "hub")
    assert all(value.startswith(str(tmp_path)) for value in variables.values())
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf_x")
    assert paths.cache_variables(tmp_path)["HF_TOKEN_PATH"] == str(tmp_path / "hf" / "token")
    assert all(
        place.path.is_relative_to(tmp_path / "c")
        for place in checked_places.locations(RunConfig(cache_dir=str(tmp_path / "c")))
    )


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    problems = found(tmp_path, f"cache_dir={tmp_path}/file/cache")
    assert any("is not a folder" in problem.why and "set cache_dir=DIR" in problem.fix for problem in problems)


@pytest.mark.parametrize("below", ["", "/x", "/x/y"])
@pytest.mark.parametrize("leads_to", ["b", "nowhere"])
def test_a_link_that_leads_nowhere_is_no_folder(below: str, leads_to: str, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / leads_to)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    problems = found(tmp_path, f"cache_dir={tmp_path}/a{below}")
    assert any(problem.key == "cache_dir" and "is not a folder" in problem.why for problem in problems)


def test_a_run_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    assert "this is a file" in one(found(tmp_path), "hydra.run.dir").why


def test_several_wrong_things_come_at_once(tmp_path: Path, monkeypatch) -> None:
    """One list: contradiction, precision, batch, option, compiler, folder, unused key."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.json").write_text("{}")
    problems = found(
        tmp_path,
        "precision=fp16",
        "zero_stage=2",
        "offload=cpu",
        "train.global_batch_size=10",
        "launcher.num_nodes=2",
        "zero.stage3_prefetch_bucket_size=7",
        "recipe.metric_for_best=bleu",
    )
    keys = {problem.key for problem in problems if problem.severity == "error"}
    assert keys == {
        "precision",
        "offload",
        "train.global_batch_size",
        "launcher.num_nodes",
        "zero.stage3_prefetch_bucket_size",
        "recipe.metric_for_best",
        "hydra.run.dir",
    }
    assert all("\n" not in problem.line() for problem in problems)
