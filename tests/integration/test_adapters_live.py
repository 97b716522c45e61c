"""Adapters on real ranks: equal losses under every launcher, a resume that is exact, folders that peft and transformers
load.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from runner.cli.export import main as export
from runner.cli.merge import main as merge
from runner.cli.predict import main as predict
from tests.conftest import Result
from tests.interrupting import LAUNCHERS, numbers

SHORT = (
    "recipe=chat_sft",
    "train.max_steps=4",
    "train.log_every=1",
    "dataset.max_train_rows=64",
    "dataset.max_validation_rows=16",
    "checkpoint.every_steps=2",
)
FAILS_IN_STEP_4 = {"RUNNER_FAULT": "error:forward:4"}


@pytest.fixture(scope="module")
def ran(real_run: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """LoRA under DDP, uninterrupted; QLoRA under DDP; LoRA under ZeRO-3, failed in step 4 and resumed."""
    folder = tmp_path_factory.mktemp("adapters")
    runs = {
        "ddp": real_run(*SHORT, *LAUNCHERS["ddp"], "adapter=lora", run_dir=folder / "ddp"),
        "qlora": real_run(*SHORT, *LAUNCHERS["ddp"], "adapter=qlora", run_dir=folder / "qlora"),
    }
    real_run(*SHORT, *LAUNCHERS["zero3"], "adapter=lora", run_dir=folder / "zero3", environment=FAILS_IN_STEP_4)
    runs["zero3"] = real_run.resume(folder / "zero3")
    for run in runs.values():
        assert run.returncode == 0, run.text
    return runs


def losses(run: Result) -> list[float]:
    return [step["loss"] for step in run.steps]


def test_zero_3_trains_an_adapter_as_ddp_does_also_over_a_resume(ran: dict[str, Result]) -> None:
    assert len(losses(ran["ddp"])) == 4
    assert losses(ran["zero3"]) == pytest.approx(losses(ran["ddp"]), abs=1e-4)
    assert ran["zero3"].record["attempts"][1]["resumed_from_step"] == 2
    assert (ran["ddp"].record["method"], ran["zero3"].record["method"]) == ("DDP LoRA", "ZeRO-3 LoRA")


def test_the_record_counts_what_is_trained(ran: dict[str, Result]) -> None:
    """Rank 16 beside 14 matrices: 2 × 16 × (256 + 192 + 192 + 256 + 3 × 384) = 65,536; the model has 351,360 more,
    quantised or not.
    """
    for run in ran.values():
        assert run.record["trained_parameters"] == 65_536
        assert run.record["num_parameters"] == 351_360 + 65_536


def test_the_saved_model_and_the_checkpoints_are_the_adapter_alone(ran: dict[str, Result]) -> None:
    for name in ("ddp", "zero3"):
        model = ran[name].run_dir / "model"
        assert (model / "adapter_model.safetensors").stat().st_size < 65_536 * 4 + 8_000
        assert not (model / "model.safetensors").exists()
    (stored,) = ran["ddp"].run_dir.glob("checkpoints/step_00000004*/model_and_optimizer.pt")
    content = torch.load(stored, weights_only=True)["model"]
    assert sum(value.numel() for value in content.values()) < 65_536 + 1_000


def test_peft_transformers_and_the_merged_model_agree(ran: dict[str, Result]) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    tokens = torch.arange(20)[None]
    for run in (ran["zero3"], ran["qlora"]):
        assert merge([str(run.run_dir)]) == 0
        merged = AutoModelForCausalLM.from_pretrained(run.run_dir / "merged")
        assert type(merged).__name__ == "LlamaForCausalLM"
        wanted = merged(tokens).logits
        for kind in (AutoPeftModelForCausalLM, AutoModelForCausalLM):
            adapted = kind.from_pretrained(run.run_dir / "model")
            assert torch.allclose(adapted(tokens).logits, wanted, atol=1e-4), kind


def test_an_exported_checkpoint_is_the_adapter_of_that_step(ran: dict[str, Result], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    for name in ("ddp", "zero3", "qlora"):
        assert export([str(ran[name].run_dir), "--checkpoint", "4", "--to", str(tmp_path / name)]) == 0
        last = load_file(tmp_path / name / "adapter_model.safetensors")
        final = load_file(ran[name].run_dir / "model" / "adapter_model.safetensors")
        assert last.keys() == final.keys()
        assert all(torch.allclose(last[key], final[key], atol=1e-6) for key in final)


def test_an_adapters_run_answers_conversations(ran: dict[str, Result], tmp_path: Path) -> None:
    question = {"messages": [{"role": "user", "content": "hello"}]}
    (tmp_path / "in.jsonl").write_text(json.dumps(question) + "\n")
    source = str(ran["ddp"].run_dir)
    assert predict([source, "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]) == 0
    answered = json.loads((tmp_path / "out.jsonl").read_text())
    assert answered["messages"] == question["messages"]
    assert isinstance(answered["prediction"], str)


@pytest.mark.soak
@pytest.mark.parametrize("adapter", ["lora", "qlora", pytest.param("dora", marks=pytest.mark.variant)])
def test_every_launcher_trains_an_adapter_alike(adapter: str, real_run: Any, tmp_path: Path) -> None:
    launchers = {**{name: LAUNCHERS[name] for name in ("ddp", "zero0", "zero1", "zero2", "zero3")}, "fsdp": ()}
    launchers["fsdp"] = ("launcher=fsdp",)
    found = {}
    for name, choice in launchers.items():
        run = real_run(*SHORT, *choice, f"adapter={adapter}", run_dir=tmp_path / name)
        assert run.returncode == 0, run.text
        found[name] = losses(run)
    for name, own in found.items():
        assert own == pytest.approx(found["ddp"], abs=1e-4), name


@pytest.mark.soak
@pytest.mark.parametrize(
    ("adapter", "launcher"),
    [
        ("lora", "ddp"),
        pytest.param("qlora", "zero2", marks=pytest.mark.variant),
        pytest.param("qlora", "fsdp", marks=pytest.mark.variant),
    ],
)
def test_a_resume_with_an_adapter_is_exact(adapter: str, launcher: str, real_run: Any, tmp_path: Path) -> None:
    choice = LAUNCHERS.get(launcher, (f"launcher={launcher}",))
    whole = real_run(*SHORT, *choice, f"adapter={adapter}", run_dir=tmp_path / "whole")
    real_run(*SHORT, *choice, f"adapter={adapter}", run_dir=tmp_path / "cut", environment=FAILS_IN_STEP_4)
    resumed = real_run.resume(tmp_path / "cut")
    assert resumed.returncode == 0, resumed.text
    assert numbers(resumed) == numbers(whole)
