"""Starting the other nodes over ssh. Everything they need travels over standard input: no value is
on a command line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError

# What a node needs of this machine's environment: credentials, modes of the libraries, settings of the network.
PREFIXES = ("HF_", "TRANSFORMERS_", "WANDB_", "MLFLOW_", "AWS_", "RUNNER_", "NCCL_", "GLOO_", "GOMP_", "OMP_")
NAMES = ("PYTHONPATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_SLOTS = re.compile(r"^(?P<host>\S+)(?:\s+slots\s*=\s*(?P<slots>\d+))?$")


def hosts_of(config: RunConfig) -> list[str]:
    """The machines named by `cluster.hosts` or the hostfile; empty where the nodes are started by hand.

    Raises:
        RequestError: for a hostfile that cannot be read, or whose slots differ.
    """
    if config.cluster.hostfile is None:
        return list(config.cluster.hosts or [])
    path = Path(config.cluster.hostfile).expanduser()
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            Problem("cluster.hostfile", path, f"it cannot be read ({error})", "name another file")
        ) from None
    hosts, slots = [], set()
    for line in filter(None, lines):
        found = _SLOTS.match(line)
        if found is None:
            raise RequestError(Problem("cluster.hostfile", line, "this is no `HOST slots=N`", "fix the line"))
        hosts.append(found["host"])
        slots.add(found["slots"])
    if len(slots) > 1:
        why = "its hosts have different numbers of slots, and every node runs as many ranks"
        raise RequestError(Problem("cluster.hostfile", path, why, "give all hosts the same slots=N"))
    return hosts


def is_here(host: str) -> bool:
    """Whether a name or address is this machine's."""
    if host in ("localhost", socket.gethostname(), os.uname().nodename.partition(".")[0]):
        return True
    import psutil

    try:
        address = socket.gethostbyname(host)
    except OSError:
        return False
    return any(item.address == address for found in psutil.net_if_addrs().values() for item in found)


@dataclass(frozen=True)
class OverSsh:
    """What is typed on the other machines over ssh: all machines, this one first, and the command's arguments."""

    hosts: list[str]
    arguments: list[str]


class Remote:
    """The agents on the other machines.

    Args:
        log_dir: their output goes there, ssh_N.log each.
    """

    def __init__(self, hosts: list[str], arguments: list[str], head: str) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._logs: list[IO[bytes]] = []
        for number, host in enumerate(hosts[1:], start=1):
            self._start(number, host, arguments, head)

    def _start(self, number: int, host: str, arguments: list[str], head: str) -> None:
        command = f"cd {shlex.quote(os.getcwd())} && exec {shlex.quote(sys.executable)} -m runner.launch.node"
        process = subprocess.Popen(
            ["ssh", "-o", "BatchMode=yes", host, command], stdin=subprocess.PIPE, stdout=sys.stderr, stderr=sys.stderr
        )
        own = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES) or name in NAMES}
        place = [f"cluster.node_rank={number}", f"cluster.head={head}"]
        assert process.stdin is not None
        bundle = {"arguments": [*arguments, *place], "environment": own}
        process.stdin.write(json.dumps(bundle).encode() + b"\n")
        process.stdin.flush()  # it stays open: its end tells the agent that this runner has gone
        self._processes[number] = process

    def ended(self) -> dict[int, int]:
        """Exit status of those that have ended, by node."""
        return {number: code for number, process in self._processes.items() if (code := process.poll()) is not None}

    def close(self) -> None:
        """End what is left."""
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
