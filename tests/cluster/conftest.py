"""Nodes as network namespaces: they need root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, cli_environment
from tests.rigs.nodes import NodesRig

PORT = 29400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is for `make test-cluster`."""
    lacking = os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None
    for item in items:
        if "tests/cluster" in str(item.path):
            item.add_marker(pytest.mark.cluster)
            if lacking:
                item.add_marker(pytest.mark.skip(reason="network namespaces need root and iproute2"))


class OnNodes:
    """One command on every node, as a user types it by hand."""

    def __init__(self, rig: NodesRig) -> None:
        self.rig = rig
        self.started: list[subprocess.Popen[str]] = []

    def start(self, number: int, *arguments: str, **environment: str | None) -> subprocess.Popen[str]:
        """`python -m runner ARGUMENTS` on node `number`, counted from 1."""
        process = self.rig.popen(
            number, sys.executable, "-m", "runner", *arguments, env=cli_environment(**environment), cwd=ROOT
        )
        self.started.append(process)
        return process

    def both(self, run_dir: Path, *arguments: str, port: int = PORT) -> list[subprocess.Popen[str]]:
        """The same command on both nodes, with their numbers."""
        common = (*arguments, "launcher.num_nodes=2", "cluster=nodes", f"cluster.head={self.rig.address(1)}:{port}")
        return [
            self.start(rank + 1, *common, f"cluster.node_rank={rank}", f"hydra.run.dir={run_dir}") for rank in (0, 1)
        ]

    def end(self, *processes: subprocess.Popen[str], timeout: float = 150) -> list[tuple[int, str]]:
        """Exit status and text of each."""
        until = time.monotonic() + timeout
        ended = []
        for process in processes:
            text, _ = process.communicate(timeout=max(1.0, until - time.monotonic()))
            ended.append((process.returncode, text))
        return ended

    def clear(self) -> None:
        """Kill what a failed test left."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodesRig]:
    """Two nodes whose own names resolve to 127.0.1.1, as on Debian and Ubuntu."""
    rig = NodesRig(tmp_path_factory.mktemp("rig"), own_name_is_loopback=True)
    yield rig
    rig.down()


@pytest.fixture
def nodes(rig: NodesRig) -> Any:
    """See `OnNodes`."""
    on = OnNodes(rig)
    yield on
    on.clear()
