"""The driver's side of a run under Spark: hands out what ranks need, takes what they write.

One TCP port. Ranks ask for the environment and the files; each agent's companion then stays connected and sends what
the ranks write. Both show the run's token, which travels in Spark's own task.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import socket
import socketserver
import tarfile
import threading
import time
from pathlib import Path
from typing import IO, Any, cast

from runner.clusters.spark.companion import keep_alive
from runner.rundir.heartbeat import HEARTBEATS
from runner.rundir.rank_errors import ERRORS
from runner.rundir.record import write_atomically


class Depot(socketserver.ThreadingTCPServer):
    """The server of one run.

    Args:
        header: what every rank is told.
        brought: file in the run folder → its text, for ranks that do not share the folder.
        inputs: key → file → its name, for ranks that lack them.

    Attributes:
        connected: companions that have not sent everything, and their hosts.
        lost: hosts whose companion went away before it had sent everything.
        delivered: companions that have sent everything.
        ended: set when the run is over.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        run_dir: Path,
        token: str,
        silence: float,
        header: dict[str, Any],
        brought: dict[str, str],
        inputs: dict[str, dict[Path, str]],
    ) -> None:
        self.run_dir, self.token, self.silence = run_dir, token, silence
        self.header, self.brought, self.inputs = header, brought, inputs
        self.connected: dict[socket.socket, str] = {}
        self.lost: list[str] = []
        self.delivered = 0
        self.ended = threading.Event()
        self._lock = threading.Lock()
        super().__init__(("", 0), _Connection)
        threading.Thread(target=self.serve_forever, daemon=True, kwargs={"poll_interval": 0.1}).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def joined(self, connection: socket.socket, host: str) -> None:
        """A companion has come."""
        with self._lock:
            self.connected[connection] = host

    def left(self, connection: socket.socket, complete: bool) -> None:
        """A companion has gone, or has sent everything."""
        with self._lock:
            host = self.connected.pop(connection, None)
            self.delivered += complete
            if host is not None and not complete and not self.ended.is_set():
                self.lost.append(host)

    def take(self, message: dict[str, Any]) -> None:
        """Write what a rank wrote; times are this machine's, on arrival."""
        name = message.get("append") or message["write"]
        path = self._inside(name)
        path.parent.mkdir(exist_ok=True)
        if "append" in message:
            with open(path, "a", encoding="utf-8") as file:
                file.write(message["text"])
            return
        text, stamp = message["text"], {HEARTBEATS: "monotonic", ERRORS: "time"}.get(path.parent.name)
        if stamp is not None and path.suffix == ".json":
            with contextlib.suppress(ValueError):
                text = json.dumps({**json.loads(text), stamp: time.monotonic()})
        write_atomically(path, text)

    def _inside(self, name: str) -> Path:
        path = (self.run_dir / name).resolve()
        if not path.is_relative_to(self.run_dir.resolve()):
            raise ValueError(name)
        return path

    def close(self) -> None:
        """End every connection: agents and ranks that are left end with their companions."""
        self.ended.set()
        self.shutdown()
        self.server_close()
        with self._lock:
            for connection in self.connected:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Connection(socketserver.StreamRequestHandler):
    server: Depot

    def handle(self) -> None:
        """One rank's question, or a companion from its start to its end."""
        keep_alive(self.connection, self.server.silence)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, tarfile.TarError):
            hello = json.loads(self.rfile.readline(4096))
            if not hmac.compare_digest(str(hello["token"]), self.server.token):
                return
            if hello["role"] == "rank":
                self._answer()
            else:
                self._listen(hello["host"])

    def _answer(self) -> None:
        self.wfile.write(json.dumps(self.server.header).encode() + b"\n")
        wanted = json.loads(self.rfile.readline())
        if wanted["files"]:
            send(
                cast(IO[bytes], self.wfile), self.server.brought, [self.server.inputs[key] for key in wanted["inputs"]]
            )

    def _listen(self, host: str) -> None:
        self.server.joined(self.connection, host)
        complete = False
        try:
            for line in iter(self.rfile.readline, b""):
                message = json.loads(line)
                if "rest" in message:
                    with tarfile.open(fileobj=self.rfile, mode="r|") as archive:
                        archive.extractall(self.server.run_dir, filter="data")
                    complete = True
                    break
                self.server.take(message)
        finally:
            self.server.left(self.connection, complete)
        self.server.ended.wait()  # a companion that has sent everything stays until Spark has the ranks' result


def send(stream: IO[bytes], texts: dict[str, str], inputs: list[dict[Path, str]]) -> None:
    """Rendered files and inputs as a tar."""
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for name, text in texts.items():
            content = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for names in inputs:
            for path, name in names.items():
                archive.add(path.resolve(), f"inputs/{name}")
