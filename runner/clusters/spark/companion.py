"""A process beside each torchrun agent on an executor: started by its first rank, its request on standard
input. Standard library only.

It lives as long as its connection to the driver. It sends what the ranks write, ends agent and ranks when the driver
says so or has gone (Spark leaves them running), and removes what they have left on the executor's disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tarfile
from pathlib import Path
from typing import Any

from runner.record_format import RECORD_FILE

LOOK_SECONDS = 0.5
CHUNK = 2**18  # bytes of one file in one message
APPENDED = ("logs/*.log", "*.jsonl")
REPLACED = ("heartbeat/*.json", "errors/*", RECORD_FILE)


def keep_alive(connection: socket.socket, seconds: float) -> None:
    """Have the kernel break a connection whose other side has been silent for `seconds`: a pulled cable."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    interval = max(1, int(seconds / 5))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


class Companion:
    """One agent's companion.

    Args:
        request: `driver` (host, port), `token`, `agent` (process id), `folder` of the ranks, `private` (whether the
            driver cannot read that folder), `run_dir` on the driver, `brought` (names in the folder that came from
            there), `leftovers` (further folders to remove), `silence` (seconds).
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        self._folder = Path(request["folder"])
        self._sent: dict[str, Any] = {}
        self._agent = os.pidfd_open(int(request["agent"]))
        self._driver = socket.create_connection(tuple(request["driver"]), timeout=request["silence"])
        keep_alive(self._driver, request["silence"])
        self._say({"token": request["token"], "role": "companion", "host": socket.gethostname()})

    def live(self) -> None:
        """Until the agent or the driver has ended."""
        try:
            while True:
                ended, _, _ = select.select([self._agent, self._driver.fileno()], [], [], LOOK_SECONDS)
                if self._driver.fileno() in ended:  # it never says anything: this is its end
                    return
                self._send_news(last=self._agent in ended)
                if self._agent in ended:
                    self._send_rest()
                    return
        except OSError:
            return  # the driver has gone
        finally:
            self._end()

    def _say(self, message: dict[str, Any]) -> None:
        self._driver.sendall(json.dumps(message).encode() + b"\n")

    def _send_news(self, last: bool) -> None:
        """What has been written since, as text that names the driver's folder."""
        if not self._request["private"]:
            return
        for pattern in APPENDED:
            for path in sorted(self._folder.glob(pattern)):
                self._send_new_lines(path, last)
        for pattern in REPLACED:
            for path in sorted(self._folder.glob(pattern)):
                content = path.read_bytes()
                if self._sent.get(str(path)) != content:
                    self._sent[str(path)] = content
                    self._say({"write": self._name(path), "text": self._as_there(content)})

    def _send_new_lines(self, path: Path, last: bool) -> None:
        sent = self._sent.get(str(path), 0)
        with open(path, "rb") as file:
            file.seek(sent)
            while new := file.read(CHUNK):
                whole = new if last or len(new) == CHUNK else new[: new.rfind(b"\n") + 1]
                if not whole:
                    return
                sent = self._sent[str(path)] = sent + len(whole)
                file.seek(sent)
                self._say({"append": self._name(path), "text": self._as_there(whole)})

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._folder))

    def _as_there(self, content: bytes) -> str:
        return content.decode("utf-8", "replace").replace(str(self._folder), self._request["run_dir"])

    def _send_rest(self) -> None:
        """All other files: the model, predictions."""
        mirrored = {path for pattern in (*APPENDED, *REPLACED) for path in self._folder.glob(pattern)}
        brought = {self._folder / name for name in self._request["brought"]}
        rest = []
        if self._request["private"]:
            rest = [path for path in sorted(self._folder.iterdir()) if path not in mirrored | brought]
        self._say({"rest": True})
        self._driver.settimeout(None)  # a large model; keep_alive watches over the connection
        with self._driver.makefile("wb") as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
            for path in rest:
                if path.name not in ("logs", "heartbeat", "errors"):
                    archive.add(path, self._name(path))
        self._driver.shutdown(socket.SHUT_WR)
        self._driver.recv(1)  # until the driver has it all, and Spark the ranks' result

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._agent, signal.SIGKILL)  # its ranks die with it
        select.select([self._agent], [], [], 5)
        if self._request["private"]:
            shutil.rmtree(self._folder, ignore_errors=True)
        for folder in self._request["leftovers"]:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its driver
    Companion(json.loads(sys.stdin.readline())).live()
