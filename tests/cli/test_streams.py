"""Output that nobody reads, that is closed or full, or whose encoding lacks characters; and each verb's usage."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.__main__ import VERBS
from tests.conftest import ROOT, cli_environment

COMMANDS = ("--version", "--help", "keys", "doctor", "estimate")


def shell(line: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """A line of bash in which R stands for the command."""
    text = line.replace("R ", f"{sys.executable} -m runner ")
    return subprocess.run(
        ["bash", "-c", text],
        capture_output=True,
        text=True,
        encoding="latin-1",
        cwd=ROOT,
        env=cli_environment(**environment),
        timeout=60,
    )


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_reader_that_goes_away_is_no_failure(verb: str) -> None:
    done = shell(f"R {verb} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_full_disk_behind_standard_output(verb: str) -> None:
    """Nothing was run, so there is nothing to resume."""
    done = shell(f"R {verb} >/dev/full")
    assert done.returncode == 1
    assert done.stderr == "error: a file or standard output: disk full; free some space, then type the command again\n"


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_closed_standard_output(verb: str) -> None:
    assert shell(f"R {verb} >&-").stderr == ""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder with a record."""
    shutil.copy(ROOT / "tests/unit/records/version_1.json", tmp_path / "record.json")
    return tmp_path


def test_a_report_into_a_closed_standard_output(run_dir: Path) -> None:
    done = shell(f"R report {run_dir} >&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["latin-1", "C"],
)
def test_characters_that_cannot_be_shown_are_replaced(environment: dict[str, str | None]) -> None:
    done = shell("R keys sweep.repeats", **environment)
    assert done.stdout == "sweep.repeats=1: Runs of every cell, with seeds seed, seed + 1, ?\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_a_width_of_nothing_is_no_width(run_dir: Path) -> None:
    assert shell(f"R report {run_dir}", COLUMNS="0").stdout == shell(f"R report {run_dir}", COLUMNS=None).stdout != ""


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_each_verb_tells_its_usage(verb: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    from runner.__main__ import answer

    assert answer(verb, [flag]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("usage: python -m runner")
    assert verb in said.out
    assert said.err == ""
