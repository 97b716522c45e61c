"""What `pip install` brings: wheel and sdist hold groups, recipes and samples, and work from any folder."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from runner import __version__
from tests.conftest import ROOT, cli_environment

INSIDE = (
    "runner/conf/config.yaml",
    "runner/conf/model/deberta_tiny.yaml",
    "runner/recipes/text_classification.py",
    "runner/samples/paraphrases/train.jsonl",
    "runner/completion/completion.bash",
    "runner/py.typed",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel that was built from it; no network is needed."""
    pytest.importorskip("build")
    out, source = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("source") / "tree"
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if files.returncode:
        pytest.skip("not a git checkout")
    for name in files.stdout.splitlines():  # a copy: setuptools writes into the folder it builds
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """A folder into which the wheel is installed; the libraries are this environment's."""
    target = tmp_path_factory.mktemp("installed")
    (wheel,) = built.glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target), str(wheel)],
        check=True, timeout=120,
    )  # fmt: skip
    return target


def in_empty_folder(
    installed: Path, folder: Path, *arguments: str, timeout: float = 120
) -> subprocess.CompletedProcess:
    """The installed console command, from an empty folder, without the checkout on the path."""
    return subprocess.run(
        [str(installed / "bin" / "finetune-runner"), *arguments], capture_output=True, text=True, cwd=folder,
        env=cli_environment(PYTHONPATH=str(installed)), timeout=timeout, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_both_archives_hold_what_a_run_needs(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert set(INSIDE) <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/")) or "__pycache__" in name]
    assert f"finetune_runner-{__version__}.dist-info/licenses/LICENSE" in names
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert {"conf/config.yaml", "recipes/text_classification.py", "LICENSE", "CHANGELOG.md"} <= sources


def test_the_command_renders_the_default_from_an_empty_folder(installed, tmp_path):
    where = in_empty_folder(installed, tmp_path, "--version")
    assert (where.returncode, where.stdout) == (0, f"{__version__}\n")
    done = in_empty_folder(installed, tmp_path, "render", "hydra.run.dir=rendered")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "rendered" / "ds_config.json").is_file()
    assert str(ROOT) not in (tmp_path / "rendered" / "config.yaml").read_text()


@pytest.mark.soak
def test_the_default_runs_from_an_empty_folder(installed, tmp_path):
    done = in_empty_folder(installed, tmp_path, "train.max_steps=4", "dataset.max_train_rows=64", timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "completed" in done.stdout
