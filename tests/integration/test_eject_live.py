"""The ejected folder trains the same thing in a Python without the runner: the same losses, step by step."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, cli_environment

SHORT = (
    "train.max_steps=8",  # 200 rows in steps of 32: the seventh step is smaller and ends the first epoch
    "train.gradient_accumulation_steps=2",
    "train.micro_batch_size=8",
    "dataset.max_train_rows=200",
    "dataset.max_validation_rows=24",
    "train.log_every=1",
)
RECIPES = {
    "classification": (),
    "dialogues": (
        "recipe=blenderbot_mudoconv",
        "model=blenderbot_tiny",
        "dataset=dialogue_sample",
        "task.num_beams=2",
        "task.min_length=2",
        "task.max_length=8",
    ),
    "text": ("recipe=gpt2_wikitext", "model=gpt2_tiny", "dataset=stories_sample"),
}
METHODS = {
    "ddp": ("launcher=ddp",),
    "zero3": ("zero_stage=3",),
    "zero3-offload": ("zero_stage=3", "offload=cpu"),
    "zero3-offload-client": ("zero_stage=3", "offload=cpu", "optimizer.owner=client", "scheduler.owner=client"),
}
LONG = [
    ("classification", "ddp"),
    ("classification", "zero3-offload-client"),
    ("dialogues", "zero3-offload"),
    ("text", "ddp"),
]
MARKED = [("classification", "zero3"), *(pytest.param(*pair, marks=pytest.mark.soak) for pair in LONG)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("recipe", "method"), MARKED)
def test_the_script_has_the_losses_of_the_run(recipe, method, real_run, monkeypatch, tmp_path: Path) -> None:
    planted = {
        "HF_TOKEN": "hf_planted0secret1planted2secret3pl",
        "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    run = real_run(*RECIPES[recipe], *METHODS[method], *SHORT, run_dir=tmp_path / "run")
    assert run.returncode == 0, run.text
    folder = tmp_path / "ejected"
    subprocess.run(
        [sys.executable, "-m", "runner", "eject", str(tmp_path / "run"), "--to", str(folder)],
        env=cli_environment(),
        cwd=ROOT,
        check=True,
        timeout=120,
    )
    losses = without_the_runner(folder)
    expected = {line["step"]: line["loss"] for line in run.steps}
    assert sorted(losses) == sorted(expected)
    assert len(losses) >= 4  # the texts make fewer blocks
    for step, loss in losses.items():
        assert loss == pytest.approx(expected[step], abs=1e-6), step
    assert (folder / "model" / "model.safetensors").stat().st_size > 10_000
    assert len((folder / "train.py").read_text().splitlines()) < 300
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert not any(secret.encode() in everything for secret in planted.values())


def without_the_runner(folder: Path) -> dict[int, float]:
    """Run the folder's own command where `import runner` fails; returns the loss of each step."""
    blocked = folder.parent / "blocked"
    blocked.mkdir()
    (blocked / "runner.py").write_text("raise ImportError('the runner is not installed here')\n")
    command = re.search(r"^    (.*accelerate launch .*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert command is not None
    environment = cli_environment() | {
        "PYTHONPATH": str(blocked),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", f"env {command[1]}"], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines}
