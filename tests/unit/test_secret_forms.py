"""One redaction at every border: twenty forms of secrets are planted, every byte that is written is searched."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from runner import secrets
from runner.errors import Problem
from runner.rundir.record import Record, write_atomically
from runner.safe_stdout import Redacting
from runner.secrets import MASK, redact_file, redacted

A = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"  # 36 letters and digits
FORMS = {  # text → the part that must not be seen
    f"hf_{A}": A,
    f"api_org_{A}": A,
    f"sk-proj-{A}": A,
    f"sk-ant-api03-{A}": A,
    f"ghp_{A}": A,
    f"gho_{A}": A,
    f"github_pat_11ABC_{A}": A,
    f"glpat-{A}": A,
    "xoxb-123456789012-abcdefABCDEF": "123456789012-abcdefABCDEF",
    "AKIAIOSFODNN7EXAMPLE": "IOSFODNN7EXAMPLE",
    "AIza" + A[:35]: A[:35],
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl": "c2lnbmF0dXJl",
    f"npm_{A}": A,
    f"pypi-{A}": A,
    f"https://x.org/d.csv?token={A}&x=1": A,
    f"https://x.org/d.csv?X-Amz-Signature={A}": A,
    f"https://x.blob/d?sv=1&sig={A}": A,
    f"https://user:{A}@proxy:3128/": A,
    f"Authorization: Bearer {A}": A,
    f"WANDB_API_KEY={A}": A,
    f"password={A}": A,
    f"-----BEGIN RSA PRIVATE KEY-----\n{A}\n-----END RSA PRIVATE KEY-----": A,
    "hunter-from-the-environment-7": "hunter-from-the-environment-7",
    "pr0xyPassw": "pr0xyPassw",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter-from-the-environment-7")
    monkeypatch.setenv("https_proxy", "http://me:pr0xyPassw@proxy:3128")
    secrets.known_secrets.cache_clear()


@pytest.fixture(autouse=True)
def forget() -> object:
    yield
    secrets.known_secrets.cache_clear()


@pytest.mark.parametrize("text", FORMS)
def test_each_form_is_masked_wherever_it_stands(text: str) -> None:
    for around in ("{}", "note {} end", '{{"note": "{}"}}', "'{}'"):
        clean = redacted(around.format(text))
        assert FORMS[text] not in clean
        assert MASK in clean


@pytest.mark.parametrize(
    "text",
    [
        "pad_token: <|endoftext|>",
        "train_tokens_per_second=12345.5",
        "a note with words such as token, key and password",
        "https://huggingface.co/org/model?revision=main",
        "model.path=/home/me/models/bert-base-uncased-2",
        "sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "user@host.example:/data",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_what_follows_a_query_stays() -> None:
    assert (
        redacted(f"file=https://x.org/d?token={A}: no such file") == f"file=https://x.org/d?token={MASK}: no such file"
    )


def test_every_border_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everything = "\n".join(FORMS)
    write_atomically(tmp_path / "config.yaml", everything)
    record = Record(tmp_path)
    record.data = {"note": everything, "overrides": list(FORMS)}
    record.write()
    (tmp_path / "rank_0.log").write_text(everything)  # as native code writes it
    redact_file(tmp_path / "rank_0.log")
    (tmp_path / "stdout").write_text(_through_the_terminal(everything))
    (tmp_path / "stderr").write_text(Problem("note", None, everything, everything).line())
    for path in tmp_path.iterdir():
        content = path.read_text()
        assert [part for part in FORMS.values() if part in content] == [], path.name
    json.loads((tmp_path / "record.json").read_text())


def _through_the_terminal(text: str) -> str:
    buffer = io.BytesIO()
    stream = Redacting(io.TextIOWrapper(buffer, encoding="utf-8"))
    assert stream.write(text) == len(text)
    stream.flush()
    return buffer.getvalue().decode()


def test_a_clean_log_is_not_touched(tmp_path: Path) -> None:
    log = tmp_path / "rank_0.log"
    log.write_bytes(b"step 1 \xff loss 0.5")
    before = log.stat().st_ino
    redact_file(log)
    assert (log.read_bytes(), log.stat().st_ino) == (b"step 1 \xff loss 0.5", before)
