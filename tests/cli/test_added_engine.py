"""A third engine is a folder and a YAML: help, keys, plan, estimate and refusals know it, nothing else was touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

ENGINE = '''
"""An engine made up for a test: half of the weights on each of its ranks."""

from __future__ import annotations

from dataclasses import dataclass

from runner.engines import base
from runner.errors import Problem
from runner.memory.items import ALWAYS, Item
from runner.memory.workload import StateLayout


@dataclass(frozen=True)
class HalvedLayout(StateLayout):
    @property
    def label(self):
        return "Halved"

    def items(self, workload, facts, rank):
        return [Item("parameters", 4 * facts.numel // 2, "half of the weights", ALWAYS)]

    def weight_bytes(self, precision):
        return 4

    def described(self):
        return {"launcher": "halved"}


class Engine(base.Engine):
    name = "halved"
    order = 9

    def label(self, config):
        return "Halved"

    def layout(self, config):
        return HalvedLayout()

    def layouts(self, like):
        return [HalvedLayout()]

    def accelerate_section(self, config, run_dir, ranks):
        return {"distributed_type": "HALVED"}

    def checkpoint_bytes(self, config, parameters):
        return parameters

    def problems(self, config):
        if config.precision.name == "bf16":
            return [Problem("precision", "bf16", "halves are fp32", "use precision=fp32")]
        return []
'''
SECTION = '''
"""A key of the made-up engine."""

from pydantic import Field

from runner.config.fields import Int, Section


class HalvedConfig(Section):
    parts: Int = Field(2, ge=2, description="Pieces that weights are cut into.")


SECTIONS = {"halved": HalvedConfig}
'''
OPTION = """# @package _global_
defaults:
  - override /zero_stage: "0"
  - override /offload: none
launcher:
  name: halved
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the runner with the engine's folder and its YAML added."""
    folder = tmp_path_factory.mktemp("third_engine")
    for name in ("runner", "conf", "recipes"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    room = folder / "runner" / "engines" / "halved"
    room.mkdir()
    for name, text in {"__init__.py": '"""Halved."""\n', "engine.py": ENGINE, "config.py": SECTION}.items():
        (room / name).write_text(text)
    (folder / "conf" / "launcher" / "halved.yaml").write_text(OPTION)
    return folder


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "200"}
    command = [sys.executable, "-m", "runner", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=copy, env=environment, timeout=120)


def test_help_and_keys_list_it(copy: Path) -> None:
    launchers = next(line for line in run(copy, "--help").stdout.splitlines() if line.split()[:1] == ["launcher"])
    assert launchers.split(maxsplit=1)[1] == ", ".join(sorted(path.stem for path in (copy / "conf/launcher").iterdir()))
    assert "halved" in launchers
    assert "Pieces that weights are cut into." in run(copy, "keys", "halved.parts").stdout


def test_it_is_rendered_as_what_it_is(copy: Path) -> None:
    done = run(copy, "render", "launcher=halved")
    assert done.returncode == 0, done.stderr
    assert "distributed_type: HALVED" in done.stdout
    assert "ds_config.json" not in done.stdout


def test_the_estimate_has_its_bytes_and_its_row(copy: Path) -> None:
    """305,154 parameters: 4 bytes each, halved, are 610,308 bytes."""
    done = run(copy, "estimate", "launcher=halved", "--json")
    assert done.returncode == 0, done.stderr
    assert '"parameters": 610308' in done.stdout
    assert '"launcher": "halved"' in done.stdout
    assert "Halved" in run(copy, "estimate").stdout


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["launcher=halved", "precision=bf16"], "error: precision=bf16: halves are fp32; use precision=fp32"),
        (["launcher=halved", "zero_stage=2"], "error: zero_stage=2: launcher=halved does not partition anything"),
        (["launcher=halved", "halved.parts=1"], "error: halved.parts=1: input should be greater than or equal to 2"),
        (["launcher=halved", "optimizer.owner=deepspeed"], "there is no DeepSpeed under launcher=halved"),
    ],
)
def test_what_it_cannot_do_is_refused(copy: Path, typed: list[str], said: str) -> None:
    done = run(copy, "render", *typed)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
