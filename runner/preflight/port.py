"""A rendezvous port that was asked for and is taken: told with the process that holds it, where it can be seen."""

from __future__ import annotations

import socket

from runner.config.schema import RunConfig
from runner.errors import Problem


def check_port(config: RunConfig) -> list[Problem]:
    """The port is tried on this machine; a free one (null) needs no check."""
    port = config.launcher.main_process_port
    if port is None or config.launcher.num_nodes > 1:
        return []
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            own.bind(("", port))
    except OSError as error:
        why = f"this port cannot be used ({error.strerror}{_holder(port)})"
        return [Problem("launcher.main_process_port", port, why, "leave it out for a free one, or choose another")]
    return []


def _holder(port: int) -> str:
    import psutil

    try:
        found = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return ""
    holders = [item.pid for item in found if item.laddr and item.laddr[1] == port and item.status == "LISTEN"]
    return f", held by process {holders[0]}" if holders and holders[0] else ""
