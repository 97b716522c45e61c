"""Tab completion: the script in the real shells, what a press offers, and how long it takes."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from runner.__main__ import VERBS
from runner.cli import completion
from runner.completion import script
from runner.errors import RequestError

PRESS_SECONDS = 0.2


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> dict[str, Path]:
    """Script by shell, in a folder with an option of the user's own."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "model" / "mine.yaml").write_text("name: mine\n")
    (folder / "earlier_run").mkdir()
    found = {}
    for shell in ("bash", "zsh", "fish"):
        found[shell] = folder / f"completion.{shell}"
        found[shell].write_text(script(shell, VERBS))
    return found


def offered(script: Path, line: str) -> list[str]:
    """What bash offers when Tab is pressed at the end of a line, as words that replace the last one
    (from its `=` on).
    """
    code = f"""
        source {script}
        COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
        COMP_LINE="$1"; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=($1); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        case $1 in python*) _finetune_runner_module ;; *) _finetune_runner ;; esac
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", code, "bash", line], capture_output=True, text=True, cwd=script.parent, timeout=20
    )
    assert done.returncode == 0, done.stderr
    return [word for word in done.stdout.split("\n") if word]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("finetune-runner ren", ["render"]),
        ("finetune-runner zero_st", ["zero_stage="]),
        ("finetune-runner +meth", ["+method="]),
        ("finetune-runner zero_stage=", ["0", "1", "2", "3"]),
        ("finetune-runner render model=min", ["minilm", "mine"]),
        ("finetune-runner -m zero_stage=2,", ["2,0", "2,1", "2,2", "2,3"]),
        ("finetune-runner -m +method=ddp,zero_3", ["ddp,zero_3"]),
        ("finetune-runner train.gradient_acc", ["train.gradient_accumulation_steps="]),
        ("finetune-runner train.save_model=t", ["true"]),
        ("finetune-runner optimizer.owner=", ["auto", "deepspeed", "client"]),
        ("finetune-runner report --fo", ["--format"]),
        ("finetune-runner resume earl", ["earlier_run"]),
        ("finetune-runner estimate resu", []),  # a verb stands first only
        ("python -m runner ren", ["render"]),
        ("python -m json.tool ren", []),
    ],
)
def test_what_bash_offers(scripts, line, expected):
    assert offered(scripts["bash"], line) == expected


@pytest.mark.alone
def test_a_press_in_an_interactive_bash(scripts):
    """Typed into a terminal: Tab writes the rest of the word, in less than 0.2 s."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(scripts["bash"].parent)
        os.environ.update(TERM="dumb", PS1="$ ", HISTFILE="")
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        os.write(terminal, f"source {scripts['bash']}; echo rea''dy\n".encode())
        _read_until(terminal, "ready", 10.0)
        os.write(terminal, b"finetune-runner zero_stage=2 optimizer.weight_d")
        _read_until(terminal, "weight_d", 5.0)
        seconds = []
        os.write(terminal, b"\t")
        seconds.append(_read_until(terminal, "ecay=", 5.0))
        os.write(terminal, b"0.1 model=deberta_v\t")
        seconds.append(_read_until(terminal, "deberta_v3_base", 5.0))
        assert max(seconds) < PRESS_SECONDS
    finally:
        os.close(terminal)
        os.kill(child, 9)
        os.waitpid(child, 0)


def _read_until(terminal: int, text: str, seconds: float) -> float:
    """Seconds until the terminal shows the text."""
    began, seen = time.monotonic(), ""
    while text not in seen:
        left = began + seconds - time.monotonic()
        assert left > 0, f"{text!r} did not appear in {seen!r}"
        if select.select([terminal], [], [], left)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
    return time.monotonic() - began


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("finetune-runner ren", ["render"]),
        ("finetune-runner zero_stage=", ["zero_stage=0", "zero_stage=1", "zero_stage=2", "zero_stage=3"]),
        ("finetune-runner -m zero_stage=2,", [f"zero_stage=2,{stage}" for stage in range(4)]),
        ("finetune-runner render model=mine", ["model=mine"]),
        ("finetune-runner optimizer.weight_d", ["optimizer.weight_decay="]),
    ],
)
def test_what_fish_offers(scripts, line, expected):
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {scripts['fish']}; complete -C '{line}'"],
        capture_output=True, text=True, cwd=scripts["fish"].parent, timeout=20,
    )  # fmt: skip
    assert [word.split("\t")[0] for word in done.stdout.splitlines()] == expected, done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_in_a_terminal(scripts):
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(scripts["zsh"].parent)
        os.environ.update(TERM="dumb", PS1="$ ")
        os.execvp("zsh", ["zsh", "-f", "-i"])
    try:
        os.write(terminal, f"autoload -U compinit; compinit -u -D; source {scripts['zsh']}; echo rea''dy\n".encode())
        _read_until(terminal, "ready", 10.0)
        os.write(terminal, b"finetune-runner optimizer.weight_d\t")
        _read_until(terminal, "ecay=", 5.0)
        os.write(terminal, b"0.1 model=deberta_v\t")
        _read_until(terminal, "3_base", 5.0)
    finally:
        os.close(terminal)
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_an_unknown_shell_is_refused():
    with pytest.raises(RequestError) as refused:
        completion.main(["tcsh"])
    assert str(refused.value).startswith("error: SHELL=tcsh: name one shell: bash, zsh, fish; ")
