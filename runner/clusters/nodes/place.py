"""Which node this is, and where the head is: from keys, or from the variables of whoever started this process."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass

from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError

RANK_VARIABLES = (
    "NODE_RANK",
    "GROUP_RANK",
    "PET_NODE_RANK",
    "SKYPILOT_NODE_RANK",
    "SLURM_NODEID",
    "JOB_COMPLETION_INDEX",
)
HEAD_VARIABLES = ("MASTER_ADDR", "PET_MASTER_ADDR")
DEFAULT_PORT = 29400


@dataclass(frozen=True)
class Place:
    """One node of a run.

    Attributes:
        rank: its number; 0 is the head.
        nodes: how many there are.
        host: the head's name or address.
        port: where the head's control store listens; 0: any free port (the head starts the others itself).
    """

    rank: int
    nodes: int
    host: str
    port: int


def place_of(config: RunConfig) -> Place:
    """This node's place.

    Raises:
        RequestError: where rank or head cannot be had.
    """
    cluster, nodes = config.cluster, config.launcher.num_nodes
    rank = cluster.node_rank if cluster.node_rank is not None else _from_environment()
    head = cluster.head or _head_from_environment()
    problems = []
    if rank is None:
        why = f"this machine's number is not known (none of {', '.join(RANK_VARIABLES)} is set)"
        problems.append(
            Problem("cluster.node_rank", None, why, "add cluster.node_rank=0 on the head, 1, 2, … on the others")
        )
    elif rank >= nodes:
        why = f"with launcher.num_nodes={nodes} nodes are numbered from 0 to {nodes - 1}"
        problems.append(Problem("cluster.node_rank", rank, why, f"use launcher.num_nodes={rank + 1}"))
    if head is None:
        why = f"the head is not known (none of {', '.join((*HEAD_VARIABLES, 'SKYPILOT_NODE_IPS'))} is set)"
        problems.append(Problem("cluster.head", None, why, "add cluster.head=HOST:PORT, the same on every machine"))
    elif _is_loopback(split_address(head)[0]):
        why = "on every machine this is the machine itself"
        problems.append(
            Problem("cluster.head", head, why, "name the head as the others reach it: its host name or address")
        )
    if problems:
        raise RequestError(problems)
    assert rank is not None
    assert head is not None
    host, port = split_address(head)
    return Place(rank, nodes, host, port)


def _is_loopback(host: str) -> bool:
    """Only what says so itself: a head whose own name resolves to 127.0.1.1 is reached all the same."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `HOST`, as host and port.

    Raises:
        RequestError: where the port is none.
    """
    host, _, port = text.strip().rpartition(":") if ":" in text else (text.strip(), "", str(DEFAULT_PORT))
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise RequestError(
            Problem("cluster.head", text, "this is no HOST:PORT", "for example cluster.head=node1:29400")
        )
    return host, int(port)


def _from_environment() -> int | None:
    found = [os.environ[name] for name in RANK_VARIABLES if os.environ.get(name, "").isdigit()]
    return int(found[0]) if found else None


def _head_from_environment() -> str | None:
    for name in HEAD_VARIABLES:
        if os.environ.get(name):
            return os.environ[name]  # its MASTER_PORT is where that launcher's own rendezvous listens: not ours
    addresses = os.environ.get("SKYPILOT_NODE_IPS", "").split()
    return addresses[0] if addresses else None


def own_address(towards: str, port: int) -> str:
    """The address of this machine from which another one is reached; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, port or 9))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Name of the network interface with this address."""
    import psutil

    return next(
        (name for name, found in psutil.net_if_addrs().items() if any(item.address == address for item in found)), None
    )


def network_variables(address: str, chosen: str | None) -> dict[str, str]:
    """Variables that keep gloo and NCCL on the interface the nodes see each other by.

    Left alone, gloo publishes what the host's own name resolves to: 127.0.1.1 on Debian and Ubuntu.
    """
    interface = chosen or interface_of(address)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {name: interface for name in names if interface and name not in os.environ}
