"""Files and folders that this user may not read or write: each is named in one line, exit status 2, nothing left.

The tests mostly run as root, to whom permissions say nothing: a child process gives its rights up first.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.__main__ import answer
from tests.conftest import CASES

NOBODY = 65534
ROWS = "sentence1,sentence2,label\n" + "".join(f"a {i},b {i},{i % 2}\n" for i in range(40))


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that anyone may enter, with one thing closed in each of several ways."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    for name in ("closed", "home", "cache", "confs/conf/recipe"):
        (root / name).mkdir(parents=True)
    for name in ("ok.csv", "mine.csv", "closed/ok.csv"):
        (root / name).write_text(ROWS)
    (root / "confs" / "conf" / "recipe" / "mine.yaml").write_text("# @package _global_\nnote: x\n")
    shutil.copytree(CASES / "models" / "tiny-deberta-3labels", root / "model")
    for path in (root / "mine.csv", root / "closed", root / "model" / "config.json", root / "cache"):
        path.chmod(0o700)
    (root / "confs" / "conf" / "recipe" / "mine.yaml").chmod(0o600)
    (root / "home").chmod(0o777)
    yield root
    shutil.rmtree(root)


def _answered(place: Path, verb: str, *arguments: str, cwd: str = "home") -> tuple[int, str]:
    """Exit status and words of a command that a user without rights types."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os.chdir(place / cwd)
            sys.stdout = sys.stderr = os.fdopen(writing, "w")
            code = answer(verb, list(arguments))
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def _data(place: Path, train: str) -> list[str]:
    return ["launcher=ddp", "dataset=files", f'dataset.train="{place}/{train}"', f"dataset.validation={place}/ok.csv"]


@pytest.fixture(scope="module", autouse=True)
def _imported(place: Path) -> None:
    """What a command imports must be there before the rights are given up: the checkout may be closed to others."""
    assert answer("render", [*_data(place, "ok.csv"), f"hydra.run.dir={place}/home/run"]) == 0
    for verb, further in (("resume", ()), ("report", ()), ("export", ("--to", "x"))):
        assert answer(verb, [f"{place}/home/run", *further]) == 2


@pytest.mark.parametrize(
    ("verb", "arguments", "named"),
    [
        ("render", ("DATA:mine.csv",), "mine.csv"),
        ("render", ("DATA:closed/ok.csv",), "closed/ok.csv"),
        ("render", ("DATA:closed/*.csv",), "closed/"),
        (
            "render",
            ("launcher=deepspeed", "launcher.config_file=PLACE/mine.csv"),
            "launcher.config_file=PLACE/mine.csv",
        ),
        ("resume", ("PLACE/closed",), "closed"),
        ("report", ("PLACE/closed",), "closed cannot be read: permission denied"),
        ("export", ("PLACE/closed", "--to", "x"), "closed"),
    ],
)
def test_what_may_not_be_read_is_named(place: Path, verb: str, arguments: tuple[str, ...], named: str) -> None:
    typed: list[str] = []
    for argument in arguments:
        start, _, name = argument.partition("DATA:")
        typed += _data(place, name) if not start else [argument.replace("PLACE", str(place))]
    code, said = _answered(place, verb, *typed)
    assert code == 2, said
    assert named.replace("PLACE", str(place)) in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("cwd", "arguments", "named"),
    [
        ("confs", ("recipe=mine",), "conf/recipe/mine.yaml"),
        (".", (), "outputs"),
    ],
)
def test_the_current_folder(place: Path, cwd: str, arguments: tuple[str, ...], named: str) -> None:
    code, said = _answered(place, "render", *arguments, cwd=cwd)
    assert code == 2, said
    assert named in said
    assert "ermission denied" in said
    assert "Traceback" not in said
