"""A standalone Spark of two namespaces: the master here, a worker of one core in each node, each with a /tmp of its
own: executors without a shared disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.rigs.nodes import NET, NodesRig

MASTER = f"spark://{NET}.254:7077"


ROOT = Path(__file__).parents[2]
# A /tmp of its own for a node; a checkout that lies under /tmp, with its Python, is seen in it again.
_PRIVATE_TMP = """
case "$1" in /tmp/*) mount --bind "$1" /mnt ;; esac
mount -t tmpfs tmpfs /tmp
case "$1" in /tmp/*) mkdir -p "$1"; mount --move /mnt "$1" ;; esac
mkdir /tmp/work
"""


class SparkRig:
    """A running Spark; `conf` is what a driver on this machine needs."""

    conf = (
        ("spark.driver.host", f"{NET}.254"),
        ("spark.driver.bindAddress", f"{NET}.254"),
        ("spark.cores.max", "2"),
        ("spark.executor.cores", "1"),
        ("spark.executor.memory", "512m"),
        ("spark.pyspark.python", sys.executable),
        ("spark.ui.enabled", "false"),
    )

    def __init__(self, folder: Path, nodes: NodesRig) -> None:
        import pyspark

        self.nodes = nodes
        home = str(Path(pyspark.__file__).parent)
        self._class = f"{home}/bin/spark-class"
        self._environment = {**os.environ, "SPARK_HOME": home, "SPARK_DAEMON_MEMORY": "128m"}
        self._log = folder / "master.log"
        master = ("--host", f"{NET}.254", "--port", "7077", "--webui-port", "0")
        self._processes = [self._daemon([], "org.apache.spark.deploy.master.Master", *master)]
        try:
            self._start_workers()
        except BaseException:
            self.down()  # a master that is left holds the port of the next one
            raise

    def _start_workers(self) -> None:
        nodes = self.nodes
        for number in range(1, nodes.count + 1):
            subprocess.run(nodes.command(number, "sh", "-ec", _PRIVATE_TMP, "sh", str(ROOT)), check=True)
            worker = (MASTER, "--host", nodes.address(number), "--cores", "1", "--memory", "700m", "--webui-port", "0")
            words = (*worker, "-d", "/tmp/work")
            self._processes.append(self._daemon(nodes.command(number), "org.apache.spark.deploy.worker.Worker", *words))
        until = time.monotonic() + 120
        while self._log.read_text().count("Registering worker") < nodes.count:
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.2)

    def _daemon(self, prefix: list[str], *words: str) -> subprocess.Popen[bytes]:
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                [*prefix, self._class, *words],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def left(self) -> list[str]:
        """Processes and folders of runs on the workers' machines."""
        found = []
        for number in range(1, self.nodes.count + 1):
            words = ("torch", "companion", "train.py")
            found += [line for line in self.nodes.processes(number) if any(word in line for word in words)]
            made = subprocess.run(self.nodes.command(number, "ls", "/tmp"), capture_output=True, text=True).stdout
            runs = (name for name in made.split() if name.startswith(("runner-", "torchelastic", "tmp")))
            found += [name for name in runs if f"/tmp/{name}" not in map(str, ROOT.parents)]
        return found

    def down(self) -> None:
        """End it all."""
        for process in self._processes:
            process.kill()
            process.wait()
