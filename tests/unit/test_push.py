"""What `push` would upload, and what it refuses; the hub itself cannot be had here."""

from __future__ import annotations

import json

import pytest

from runner.cli import push
from runner.config.schema import RunConfig
from runner.errors import RequestError


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    for name in ("HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "nobody"))
    folder = tmp_path / "run"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "model.safetensors").write_bytes(b"x" * 2048)
    record = {"status": "completed", "method": "DDP", "command": "python -m runner", "metrics": {"f1": 0.5}}
    (folder / "record.json").write_text(json.dumps(record | {"config": RunConfig().model_dump(mode="json")}))
    (folder / "config.yaml").write_text("note: ''\n")
    return folder


def test_a_dry_run_shows_files_and_card(run_dir, capsys):
    assert push.main([str(run_dir), "--to", "me/mine", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "model.safetensors: 2.0 KiB" in said
    assert "to https://huggingface.co/me/mine (private)" in said
    assert "| f1 | 0.5000 |" in said


def test_without_a_token_it_is_refused_in_one_line(run_dir):
    with pytest.raises(RequestError) as refused:
        push.main([str(run_dir), "--to", "me/mine"])
    assert str(refused.value).startswith("error: --to=me/mine: there is no token")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["mine", "me/", "a/b/c"])
def test_a_wrong_name_is_refused(run_dir, name):
    with pytest.raises(RequestError, match="this is no name on the hub"):
        push.main([str(run_dir), "--to", name])


def test_a_run_without_a_model_is_refused(run_dir):
    (run_dir / "model" / "model.safetensors").unlink()
    with pytest.raises(RequestError, match="has saved no model"):
        push.main([str(run_dir), "--to", "me/mine"])
