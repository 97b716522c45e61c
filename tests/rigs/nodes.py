"""Two "nodes" on one machine, each with its own network, host name, process numbers and /dev/shm; root and iproute2
only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

NET = "10.77.0"


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


class NodesRig:
    """Nodes 1..N, called node1..nodeN, at 10.77.0.N."""

    def __init__(self, folder: Path, count: int = 2, own_name_is_loopback: bool = False) -> None:
        self.folder, self.count = folder, count
        self._inits: dict[int, int] = {}
        self._outer: dict[int, subprocess.Popen[bytes]] = {}
        self.down()
        folder.mkdir(parents=True, exist_ok=True)
        _ip("link", "add", "rigbr", "type", "bridge")
        _ip("addr", "add", f"{NET}.254/24", "dev", "rigbr")
        _ip("link", "set", "rigbr", "up")
        for number in range(1, count + 1):
            self.start(number, own_name_is_loopback)

    def address(self, number: int) -> str:
        """Of a node."""
        return f"{NET}.{number}"

    def start(self, number: int, own_name_is_loopback: bool = False, unshare: tuple[str, ...] = ()) -> None:
        """Start a node."""
        name, link = f"rign{number}", f"rigv{number}"
        hosts = self.folder / f"hosts{number}"
        names = [f"{NET}.{other} node{other}" for other in range(1, self.count + 1)]
        if own_name_is_loopback:  # as Debian and Ubuntu do
            names = [f"127.0.1.1 node{number}", *(line for line in names if not line.endswith(f"node{number}"))]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *names, f"{NET}.254 head"]) + "\n")
        up = self.folder / f"up{number}"
        up.unlink(missing_ok=True)
        _ip("netns", "add", name)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", link, "master", "rigbr", "up")
        _ip("-n", name, "addr", "add", f"{NET}.{number}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        script = (
            f"hostname node{number}; mount --make-rprivate /; mount -t tmpfs tmpfs /dev/shm;"
            f" mount --bind {hosts} /etc/hosts; echo up > {up}; exec sleep infinity"
        )
        outer = subprocess.Popen(
            [
                *("unshare", "--uts", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", *unshare),
                *("nsenter", f"--net=/run/netns/{name}", "--", "bash", "-c", script),
            ],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + 20
        while not (up.exists() and up.read_text()):
            assert time.monotonic() < until, "the node did not start"
            time.sleep(0.02)
        children = subprocess.run(["pgrep", "-P", str(outer.pid)], capture_output=True, text=True).stdout.split()
        self._outer[number], self._inits[number] = outer, int(children[0])

    def command(self, number: int, *words: str) -> list[str]:
        """A command line that runs in a node."""
        return ["nsenter", "-t", str(self._inits[number]), "-n", "-u", "-m", "-p", "-i", "-T", "--", *words]

    def popen(self, number: int, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command in a node; its output in one pipe."""
        return subprocess.Popen(
            self.command(number, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )

    def kill(self, number: int) -> None:
        """As if its power were lost, with its connections reset by the kernel."""
        os.kill(self._inits[number], signal.SIGKILL)

    def restart(self, number: int, unshare: tuple[str, ...] = ()) -> None:
        """Start a killed node anew, with further options of unshare (a clock of its own)."""
        self._outer[number].wait(timeout=10)
        _ip("link", "del", f"rigv{number}", check=False)
        _ip("netns", "del", f"rign{number}", check=False)
        self.start(number, unshare=unshare)

    def cable(self, number: int, state: str) -> None:
        """`up` or `down`."""
        _ip("link", "set", f"rigv{number}", state)

    def processes(self, number: int) -> list[str]:
        """Command lines of everything in a node."""
        done = subprocess.run(self.command(number, "ps", "-eo", "args"), capture_output=True, text=True)
        return done.stdout.splitlines()[1:]

    def down(self) -> None:
        """Remove all of it, what an earlier rig left, too."""
        for init in self._inits.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(init, signal.SIGKILL)
        for outer in self._outer.values():
            outer.wait(timeout=10)
        for number in range(1, max(self.count, 4) + 1):
            _ip("link", "del", f"rigv{number}", check=False)
            _ip("netns", "del", f"rign{number}", check=False)
        _ip("link", "del", "rigbr", check=False)
