"""A real Spark on network namespaces: root, Java and pyspark."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator

import pytest

from tests.rigs.nodes import NodesRig
from tests.rigs.spark import SparkRig


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is for `make test-spark`."""
    lacking = os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "java")))
    for item in items:
        if "tests/spark" in str(item.path):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(600))  # several runs in one session
            if lacking or importlib.util.find_spec("pyspark") is None:
                item.add_marker(pytest.mark.skip(reason="it needs root, iproute2, Java and pyspark"))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRig]:
    folder = tmp_path_factory.mktemp("spark")
    nodes = NodesRig(folder / "nodes")
    try:
        rig = SparkRig(folder, nodes)
        yield rig
        rig.down()
    finally:
        nodes.down()
