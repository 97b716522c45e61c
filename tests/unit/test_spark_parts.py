"""What `cluster=spark` does beside Spark: files that travel, the companion of an agent, the driver's depot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.clusters.spark import companion
from runner.clusters.spark.depot import Depot
from runner.clusters.spark.travel import inputs_of, lacking, placed
from tests.unit.test_clusters import config_of


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    for name in ("recipes/mine.py", "recipes/beside.py", "a/rows.csv", "b/rows.csv", "dev.csv", "tiny/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_what_a_request_names_travels_and_is_named_anew(project: Path, tmp_path: Path) -> None:
    config = config_of(
        *("dataset=files", "dataset.train=[a/rows.csv,b/rows.csv]", "dataset.validation=dev.csv"),
        *("recipe.file=mine.py", f"model.path={project}/tiny"),
    )
    inputs = {item.key: item for item in inputs_of(config)}
    assert {key: list(item.names().values()) for key, item in inputs.items()} == {
        "dataset.train": ["dataset.train/0/rows.csv", "dataset.train/1/rows.csv"],
        "dataset.validation": ["dataset.validation/0/dev.csv"],
        "recipe.file": ["recipe.file/mine.py", "recipe.file/beside.py"],
        "model.path": ["model.path/config.json"],
    }
    sizes = {key: item.sizes() for key, item in inputs.items()}
    assert lacking(sizes) == []
    (project / "dev.csv").write_text("another file of this name")
    (project / "recipes" / "beside.py").unlink()
    assert lacking(sizes) == ["dataset.validation", "recipe.file"]
    there = placed(config, {key: list(item.names().values()) for key, item in inputs.items()}, Path("/tmp/x"))
    assert there.dataset.train == ["/tmp/x/inputs/dataset.train/0/rows.csv", "/tmp/x/inputs/dataset.train/1/rows.csv"]
    assert there.recipe.file == "/tmp/x/inputs/recipe.file/mine.py"
    assert there.model.path == "/tmp/x/inputs/model.path"
    assert placed(config, {}, Path("/tmp/x")) == config


def test_what_comes_with_the_runner_does_not_travel() -> None:
    assert inputs_of(config_of()) == []


class Agent:
    """A process that stands for torchrun, its companion, and the driver's depot."""

    def __init__(self, tmp_path: Path, private: bool = True, token: str = "t") -> None:
        self.run_dir, self.folder, self.left = tmp_path / "run", tmp_path / "there", tmp_path / "torchelastic_x"
        for path in (self.run_dir, self.folder / "logs", self.left):
            path.mkdir(parents=True)
        self.depot = Depot(self.run_dir, "t", 5.0, {}, {}, {})
        self.agent = subprocess.Popen(["sleep", "60"])
        request = {
            "driver": ["127.0.0.1", self.depot.port],
            "token": token,
            "agent": self.agent.pid,
            "folder": str(self.folder),
            "private": private,
            "run_dir": str(self.run_dir),
            "brought": ["config.yaml"],
            "leftovers": [str(self.left)],
            "silence": 5.0,
        }
        words = [sys.executable, "-I", companion.__file__]
        self.companion = subprocess.Popen(words, stdin=subprocess.PIPE, text=True)
        assert self.companion.stdin is not None
        self.companion.stdin.write(json.dumps(request) + "\n")
        self.companion.stdin.close()

    def clear(self) -> None:
        self.depot.close()
        for process in (self.agent, self.companion):
            process.kill()
            process.wait()


@pytest.fixture
def agent(tmp_path: Path) -> object:
    started = Agent(tmp_path)
    yield started
    started.clear()


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_what_ranks_write_comes_back_and_nothing_stays(agent: Agent) -> None:
    log = agent.folder / "logs" / "rank_1.log"
    log.write_text(f"model in {agent.folder}/model\nhalf a li")
    (agent.folder / "errors").mkdir()
    (agent.folder / "errors" / "rank_1.json").write_text(json.dumps({"rank": 1, "time": 5.0}))
    copy = agent.run_dir / "logs" / "rank_1.log"
    until(lambda: text(copy) == f"model in {agent.run_dir}/model\n")  # whole lines, and this folder's name
    until(lambda: bool(text(agent.run_dir / "errors" / "rank_1.json")))
    error = json.loads(text(agent.run_dir / "errors" / "rank_1.json"))
    assert abs(error["time"] - time.monotonic()) < 5  # the driver's clock
    (agent.folder / "model").mkdir()
    (agent.folder / "model" / "weights").write_bytes(os.urandom(2**20))
    (agent.folder / "config.yaml").write_text("the driver has it")
    weights = (agent.folder / "model" / "weights").read_bytes()
    agent.agent.kill()
    agent.agent.wait()
    until(lambda: agent.depot.delivered == 1)
    assert (agent.run_dir / "model" / "weights").read_bytes() == weights
    assert text(copy).endswith("half a li")
    assert not (agent.run_dir / "config.yaml").exists()
    assert agent.folder.exists()  # until Spark has the result
    agent.depot.close()
    assert agent.companion.wait(timeout=10) == 0
    assert not agent.folder.exists()
    assert not agent.left.exists()
    assert agent.depot.lost == []


def test_when_the_driver_ends_so_does_the_agent(agent: Agent) -> None:
    until(lambda: len(agent.depot.connected) == 1)
    agent.depot.close()
    assert agent.agent.wait(timeout=10) == -9
    assert agent.companion.wait(timeout=10) == 0
    assert not agent.folder.exists()


def test_a_companion_that_is_killed_is_missed(agent: Agent) -> None:
    until(lambda: len(agent.depot.connected) == 1)
    agent.companion.kill()
    until(lambda: len(agent.depot.lost) == 1)


def test_a_wrong_token_gets_nothing(tmp_path: Path) -> None:
    stranger = Agent(tmp_path, token="guessed")
    try:
        assert stranger.companion.wait(timeout=10) == 0
        assert stranger.depot.connected == {}
        assert stranger.depot.lost == []
    finally:
        stranger.clear()


def test_nothing_is_written_outside_the_run_folder(agent: Agent) -> None:
    with pytest.raises(ValueError, match="escape"):
        agent.depot.take({"write": "../escape", "text": ""})
    assert not (agent.run_dir.parent / "escape").exists()
