"""Nothing secret in any byte that a sweep, a failing run, its ranks' native output and a report leave behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, cli_environment
from tests.unit.test_secret_forms import FORMS, A

ENVIRONMENT = {
    "HF_TOKEN": f"hf_{A}",
    "MY_SECRET": "hunter-from-the-environment-7",
    "https_proxy": "http://me:pr0xyPassw@127.0.0.1:9",
    "HF_ENDPOINT": "https://user:endp0intSecret@127.0.0.1:9",
    "DATABASE": "postgres://u:dbS3cretPw@host/db",
}
PLANTED = {*FORMS.values(), "endp0intSecret", "dbS3cretPw"}
RECIPE = """# @package _global_
defaults: [deberta_mrpc, _self_]
recipe: {name: leaky, file: leaky.py}
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder after a sweep of two cells, the second of which fails in its ranks, and a report of both."""
    place = tmp_path_factory.mktemp("secrets")
    (place / "conf" / "recipe").mkdir(parents=True)
    (place / "conf" / "recipe" / "leaky.yaml").write_text(RECIPE)
    (place / "recipes").mkdir()
    (place / "recipes" / "leaky.py").write_text(_leaky())
    small = ("dataset.max_train_rows=32", "dataset.max_validation_rows=16", "train.max_steps=2", "launcher=ddp")
    spoken = [text.replace("\n", " ") for text in FORMS if "PRIVATE KEY" not in text]
    note = 'note="' + " | ".join(spoken) + '"'
    sweep = ["-m", "recipe=leaky", note, "train.seed=1,2", f"hydra.sweep.dir={place}/sweep", f"cache_dir={place}/cache"]
    assert _typed(place, *sweep, *small, "scheduler.warmup_steps=0", screen="sweep") == 3
    assert _typed(place, "report", f"{place}/sweep", "--format", "html", "--output", "page.html", screen="report") == 0
    assert _typed(place, "report", f"{place}/sweep", "--format", "json", screen="json") == 0
    return place


def _leaky() -> str:
    """The general recipe, which writes secrets past Python's streams, by itself and by a child, and dies of one."""
    leak = f"""
    def loss(self, model, batch):
        import os, subprocess

        text = {chr(10).join(FORMS)!r}
        os.write(1, text.encode())
        subprocess.run(["printenv"], check=False)
        if self.config.train.seed == 2:
            raise RuntimeError(text)
        return super().loss(model, batch)
"""
    # The class ends the file, and the last definition of a method counts.
    return (ROOT / "recipes" / "text_classification.py").read_text().rstrip() + "\n" + leak


def _typed(place: Path, *arguments: str, screen: str) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "runner", *arguments],
        capture_output=True,
        cwd=place,
        env=cli_environment(**ENVIRONMENT),
        timeout=240,
        check=False,
    )
    (place / f"{screen}.screen").write_bytes(done.stdout + done.stderr)
    return done.returncode


def test_no_byte_holds_a_secret(workplace: Path) -> None:
    leaks = []
    for path in workplace.rglob("*"):
        if path.is_file() and "recipes" not in path.parts and "__pycache__" not in path.parts:
            content = path.read_bytes()
            leaks += [(str(path), part) for part in PLANTED if part.encode() in content]
    assert leaks == []


def test_the_places_that_could_hold_them_were_written(workplace: Path) -> None:
    """Else the search above proves nothing: logs of the native output, both records, the page, the screen."""
    masked = {
        str(path.relative_to(workplace))
        for path in workplace.rglob("*")
        if path.is_file() and b"SECRET-HIDDEN" in path.read_bytes()
    }
    for name in ("sweep/0/record.json", "sweep/1/record.json", "sweep/0/logs/rank_0.log", "sweep/1/logs/rank_0.log"):
        assert name in masked, sorted(masked)
    assert {"page.html", "sweep.screen"} <= masked, sorted(masked)
