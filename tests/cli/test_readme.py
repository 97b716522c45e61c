"""Every command of the README is executed, in a folder of its own, without a network."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, cli_environment

SMALL = "train.max_steps=2 dataset.max_train_rows=64 dataset.max_validation_rows=16 train.save_model=false"
NO_HUB = (2, "not in")  # what a machine without a network answers: exit status, and a part of the message
# Command of the README → what is added to keep it short, the exit status, and a part of what it says.
COMMANDS = {
    "python -m runner model=deberta_xl zero_stage=2": ("", *NO_HUB),
    "python -m runner -m train.micro_batch_size=8,16,40 launcher=ddp,deepspeed": (SMALL, 0, "completed"),
    "python -m runner report": ("", 0, "ZeRO-2"),
    "python -m runner render model=deberta_xl zero_stage=2": ("", 0, "accelerate launch"),
    "python -m runner estimate model=deberta_xl --device-memory 24GiB": ("", 0, "largest micro batch"),
    "python -m runner fit model=deberta_xl zero_stage=2": ("", *NO_HUB),
    "python -m runner resume RUN_DIR": ("", 2, "RUN_DIR"),
    "python -m runner model=bert_base dataset=files dataset.train=train.csv dataset.validation=dev.csv": ("", *NO_HUB),
    "python -m runner recipe=chat_sft": (SMALL, 0, "token_accuracy"),
    "python -m runner recipe=chat_sft adapter=lora": (SMALL, 0, "token_accuracy"),
    "python -m runner eject zero_stage=2 --to my_training": ("", 0, "wrote"),
    "python -m runner predict RUN_DIR --input new.csv --output answers.csv": ("", 2, "RUN_DIR"),
    "python -m runner status": ("", 0, "no run in ./outputs or ./multirun is queued or running"),
    "python -m runner new my_task --from deberta_mrpc": ("", 0, "my_task"),
    "python -m runner doctor": ("", 0, "torch"),
    "python -m runner keys clipping": ("", 0, "train.gradient_clipping"),
    "python -m runner recipe=blenderbot_mudoconv": ("", *NO_HUB),
    "python -m runner recipe=gpt2_wikitext": ("", 2, "gpt2"),
}


def written() -> list[str]:
    """Commands in the README, in order, each once."""
    text = (ROOT / "README.md").read_text()
    found = re.findall(r"python -m runner[^\n`|#]*", text)
    return list(dict.fromkeys(" ".join(command.split()) for command in found))


def test_the_list_is_the_readmes():
    assert set(written()) == set(COMMANDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("readme")
    (path / "train.csv").write_text("sentence1,sentence2,label\na,b,0\nc,d,1\n")
    (path / "dev.csv").write_text("sentence1,sentence2,label\na,b,0\n")
    return path


@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_command_of_the_readme_does_what_it_says(command, folder: Path):
    extra, code, said = COMMANDS[command]
    words = shlex.split(f"{command} {extra}".removeprefix("python"))
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=240, cwd=folder, stdin=subprocess.DEVNULL,
        env=cli_environment(HF_HUB_OFFLINE="1", HF_HOME=str(folder / "hf")),
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("target", ["run", "test"])
def test_make_targets_exist(target):
    """`make run` and `make test` themselves are what CI and a new user start; here only that they would do what the
    README says.
    """
    done = subprocess.run(
        ["make", "-n", target], capture_output=True, text=True, cwd=ROOT, env=dict(os.environ), timeout=30
    )
    assert done.returncode == 0
    assert {"run": "-m runner", "test": "-m pytest"}[target] in done.stdout


def test_make_leaves_out_what_pytest_does():
    """Its calls select by markers of their own, which replace those of pyproject.toml."""
    import tomllib

    addopts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    left_out = shlex.split(addopts)[-1]
    for target in ("test", "check"):
        done = subprocess.run(["make", "-n", target], capture_output=True, text=True, cwd=ROOT, timeout=30)
        calls = [line for line in done.stdout.splitlines() if "-m pytest" in line]
        for kind, call in zip(("not alone", "alone"), calls, strict=True):
            assert f'-m "{left_out} and {kind}"' in call
