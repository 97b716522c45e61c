"""A user's own task, with the project installed and nothing else of it around."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, SMALL, command

PAGE = ROOT / "docs" / "new_task.md"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as `pip install` puts it there, without its dependencies; built from a copy,
    which is then removed.
    """
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("runner", "conf", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, source)
    (source / "README.md").write_text("see docs")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
        str(site),
        str(source),
    ]
    subprocess.run(pip, check=True, timeout=120)
    shutil.rmtree(source)
    return site


def test_a_copy_runs_unchanged_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    env: dict[str, str | None] = {"PYTHONPATH": str(installed)}
    made = command("new", "my_task", "--from", "deberta_mrpc", run_dir=tmp_path, cwd=tmp_path, env=env, timeout=60)
    assert made.returncode == 0, made.text
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*") if path.suffix != ".pyc") == [
        "conf/recipe/my_task.yaml",
        "recipes/my_task.py",
    ]
    ran = command("recipe=my_task", *SMALL, run_dir=tmp_path / "run", cwd=tmp_path, env=env)
    assert ran.returncode == 0, ran.text
    assert ran.record["config"]["recipe"]["file"] == "my_task.py"
    assert ran.record["metrics"].keys() == {"accuracy", "f1"}
    again = command("new", "my_task", run_dir=tmp_path, cwd=tmp_path, env=env, timeout=60)
    assert again.returncode == 2
    assert (
        again.text.strip()
        == f"error: new my_task: there is a recipe of this name: {tmp_path}/conf/recipe/my_task.yaml; choose another "
        "name"
    )


def test_the_page_on_a_new_task_does_what_it_says(installed: Path, tmp_path: Path) -> None:
    """Every `sh` block is run, every `diff` block applied, in the order of the page."""
    blocks = re.findall(r"^```(sh|diff)(?: (\S+))?\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 10
    env = {
        **os.environ,
        "PYTHONPATH": str(installed),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "120",
    }
    folder, said = tmp_path, ""
    for kind, file, text in blocks:
        if kind == "diff":
            apply_diff(folder / file, text)
            continue
        done = subprocess.run(["bash", "-euc", text], cwd=folder, env=env, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, text + done.stdout + done.stderr
        said = done.stdout
        folder = tmp_path / "stars"
    accuracy, off = (
        float(re.search(rf"^{name}\s+([\d.]+)", said, re.MULTILINE)[1]) for name in ("accuracy", "stars_off")
    )  # type: ignore[index]
    assert accuracy > 0.95
    assert off < 0.1
    predictions = list((tmp_path / "stars/outputs").glob("*/*/predictions/validation.jsonl"))
    assert [len(path.read_text().splitlines()) for path in predictions] == [200, 200]


def apply_diff(path: Path, diff: str) -> None:
    """Replace the old lines (blank and minus) by the new ones (blank and plus); they must stand there exactly once."""
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    text = path.read_text()
    assert text.count(old) == 1, f"{path} does not hold exactly once:\n{old}"
    path.write_text(text.replace(old, new))
