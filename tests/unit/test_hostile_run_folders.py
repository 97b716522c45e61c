"""Run folders as input: damaged, edited, or made by somebody else. Each is refused in one line, and nothing of it runs."""  # noqa: E501

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from runner import paths, rundir
from runner.checkpoint.manifest import read_manifest
from runner.config.schema import RunConfig
from runner.errors import RequestError
from runner.preflight.orphaned_processes import is_rank
from runner.resume import open_run
from runner.rundir.trusted import check_code, checked_record, recipe_facts, rendered_json

RECORD: dict[str, Any] = {
    "schema_version": 1,
    "status": "preempted",
    "attempts": [{"started_at": "2026-01-01T00:00:00Z", "status": "preempted"}],
    "data": {"train": {"rows": 64}},
    "phases": {"startup": 1.0},
}


def written(folder: Path, content: Any) -> Path:
    (folder / "record.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_a_record_as_it_was_written_passes(tmp_path: Path) -> None:
    assert checked_record(written(tmp_path, RECORD)) == RECORD


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"attempts": None}, "attempts"),
        ({"attempts": []}, "attempts"),
        ({"attempts": [7]}, "attempts.0"),
        ({"attempts": [{"status": "failed"}]}, "attempts.0.started_at"),
        ({"status": 3}, "status"),
        ({"status": "fine"}, "status"),
        ({"data": []}, "data"),
        ({"data": {"train": "x"}}, "data.train"),
        ({"phases": {"startup": "long"}}, "phases.startup"),
        ({"runner": "me"}, "runner"),
        ({"runner": {"pid": "1"}}, "runner.pid"),
        ({"schema_version": "1"}, "schema_version"),
        ({"artifacts": {"model": 3}}, "artifacts.model"),
        ({"epochs": {}}, "epochs"),
        ({"planned_optimizer_steps": "many"}, "planned_optimizer_steps"),
    ],
)
def test_a_damaged_record_is_refused_with_its_key(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    with pytest.raises(RequestError, match=r"record\.json is damaged at") as error:
        open_run(written(tmp_path, RECORD | change))
    assert f"damaged at {key} " in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "[" * 5000, '{"a": ' * 80 + "1" + "}" * 80, "\udcff"])
def test_what_is_no_record_at_all(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RequestError, match=r"its record\.json"):
        open_run(tmp_path)


def test_a_newer_schema_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="schema version 9, this runner knows 1"):
        open_run(written(tmp_path, RECORD | {"schema_version": 9}))


@pytest.mark.parametrize("name", ["record.json", "config.yaml"])
def test_a_fifo_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises((RequestError, OSError)):
        checked_record(tmp_path) if name == "record.json" else rundir.read_config(tmp_path)


@pytest.mark.parametrize(
    "text", ["{", "[]", "", '{"zero_optimization": 3}', '{"zero_optimization": {"offload_param": "cpu"}}', "[" * 5000]
)
def test_a_damaged_deepspeed_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "ds_config.json").write_text(text)
    with pytest.raises(RequestError, match=r"its ds_config\.json"):
        rendered_json(tmp_path, "ds_config.json")


def test_a_deepspeed_file_that_is_not_there_is_not_needed(tmp_path: Path) -> None:
    rendered_json(tmp_path, "ds_config.json")


MANIFEST: dict[str, Any] = {
    "format": 1, "step": 4, "epoch": 0, "window": 4, "evaluated": False, "metric": None, "world_size": 2,
    "launcher": "ddp", "zero_stage": None, "micro_batch_size": 4, "gradient_accumulation_steps": 1,
    "config_hash": "x", "written_at": "now", "versions": {}, "files": {"a": {"bytes": 1, "sha256": "00"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"world_size": "2"}, "world_size"),
        ({"world_size": 0}, "world_size"),
        ({"step": None}, "step"),
        ({"files": []}, "files"),
        ({"files": {"a": 3}}, "files.a"),
        ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"metric": "high"}, "metric"),
    ],
)
def test_a_damaged_manifest(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    assert read_manifest(tmp_path).world_size == 2
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST | change))
    with pytest.raises(ValueError, match=f"its manifest is damaged at {key}"):
        read_manifest(tmp_path)


def configured(file: Path | str, **model: Any) -> RunConfig:
    return RunConfig.model_validate({"recipe": {"file": str(file)}, "model": model})


def test_only_the_runs_own_recipe_runs_at_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours = paths.recipe_dirs()[0] / "text_classification.py"
    check_code(tmp_path, {"recipe": recipe_facts(configured("text_classification.py"))}, configured(ours.name), False)
    (tmp_path / "elsewhere").mkdir()
    evil = shutil.copy(ours, tmp_path / "elsewhere" / "evil.py")
    with pytest.raises(RequestError, match="--trust-code"):
        check_code(tmp_path, {}, configured(evil), False)
    check_code(tmp_path, {}, configured(evil), True)


def test_a_recipe_that_has_changed_and_a_models_own_code_need_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    mine = tmp_path / "recipes" / "mine.py"
    mine.write_text("# one\n")
    record = {"recipe": recipe_facts(configured("mine.py"))}
    check_code(tmp_path, record, configured("mine.py"), False)
    mine.write_text("# two\n")
    with pytest.raises(RequestError, match="has changed since the run began"):
        check_code(tmp_path, record, configured("mine.py"), False)
    with pytest.raises(RequestError, match="comes with the model"):
        check_code(tmp_path, {}, configured("mine.py", trust_remote_code=True), False)


@pytest.mark.parametrize("pid", [1, 0, -1, "1", None, True, 2**40, pytest.param(os.getpid(), id="this process")])
def test_advice_to_end_a_process_names_ranks_only(pid: object) -> None:
    """A heartbeat is a file: 1 is init; this test's own process is no rank either."""
    assert not is_rank(pid)


def test_a_completed_run_says_how_to_train_further(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(RequestError, match=r"model\.path=.*/model train\.epochs=N"):
        open_run(written(tmp_path, RECORD | {"status": "completed"}))
