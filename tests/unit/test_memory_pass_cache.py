"""Answers about model classes kept between processes: found again, asked anew when something changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from workloads import made

from runner.memory import pass_cache
from runner.memory.activations import Activations, activations
from runner.memory.facts import Architecture, ModelFacts, ParameterFact
from tests.conftest import ROOT, cli_environment

FACTS = ModelFacts((ParameterFact("w", 6, True, 2), ParameterFact("b", 3, False, 3)), 8, 17, None)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pass_cache, "_folder", None)
    pass_cache.keep_under(tmp_path)
    return tmp_path / "estimates"


def asked(question: object) -> tuple[ModelFacts, bool]:
    """The answer, and whether it was asked for."""
    questions: list[object] = []

    def ask() -> ModelFacts:
        questions.append(question)
        return FACTS

    return pass_cache.kept(question, ModelFacts, ask), bool(questions)


def test_an_answer_is_asked_for_once(cache: Path) -> None:
    assert [asked("a"), asked("a"), asked("b")] == [(FACTS, True), (FACTS, False), (FACTS, True)]
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".json"]  # nothing half-written


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"parameters": 3}', b"\xff\xfe"])
def test_a_damaged_file_is_asked_anew_and_replaced(cache: Path, damage: bytes) -> None:
    asked("a")
    [path] = cache.iterdir()
    path.write_bytes(damage)
    assert [asked("a"), asked("a")] == [(FACTS, True), (FACTS, False)]


def test_another_version_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    asked("a")
    pass_cache._versions.cache_clear()
    monkeypatch.setattr(pass_cache, "version", lambda name: "99")
    assert asked("a") == (FACTS, True)
    pass_cache._versions.cache_clear()


def test_a_cache_that_cannot_be_written_costs_the_pass(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pass_cache.keep_under(tmp_path / "file")
    assert [asked("a"), asked("a")] == [(FACTS, True), (FACTS, True)]


def test_the_largest_layer_is_that_of_the_batch() -> None:
    """Under autocast a layer keeps copies of its weights, whatever the batch: the encoder's layer of this model keeps
    more for each row (16 source tokens, 2 target tokens), the decoder's has the weights of two attentions.
    """
    facts = {"model_type": "bart", "d_model": 128, "vocab_size": 99, "encoder_layers": 1, "decoder_layers": 1}
    facts |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 2, "decoder_attention_heads": 2}

    def layer(rows: int) -> int:
        kept: Activations = activations(
            made(
                Architecture.of("seq2seq", facts),
                micro_batch_size=rows,
                source_length=16,
                target_length=2,
                precision="bf16",
                launcher="ddp",
            )
        )
        return kept.layer

    one, two, many, more = (layer(rows) for rows in (1, 2, 1000, 1001))
    assert two - one < more - many
    assert layer(999) == many - (more - many)


def test_a_second_estimate_imports_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from runner.cli.estimate import main; "
        "code = main(['model=deberta_tiny', 'zero_stage=3', '--device-memory', '8GiB']); "
        "print(code, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd=ROOT,
            env=cli_environment(XDG_CACHE_HOME=str(tmp_path / "cache")),
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert said[1][-1] == "0 False False"
    assert said[0][:-1] == said[1][:-1]
