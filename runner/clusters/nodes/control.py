"""The control store between the agents of a run: torch's TCPStore on the head. It carries who joined, what differs, the
rendered files, requests to stop, signs of life and each node's end. All times are the head's, taken on arrival.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from runner.clusters.nodes.facts import Facts
from runner.clusters.nodes.place import Place
from runner.errors import Problem, RequestError

POLL_SECONDS = 0.2
BEAT_SECONDS = 0.5
ANSWER_SECONDS = 30.0  # longest wait for something the other side only has to read and answer


class HeadGone(Exception):
    """The head's store does not answer any more."""


class Store:
    """JSON values by name over one connection."""

    def __init__(self, host: str, port: int, serve: bool = False) -> None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # its own stack traces; what is wrong is told in words
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        timeout = timedelta(seconds=ANSWER_SECONDS)
        self._store = TCPStore(host, port, is_master=serve, wait_for_workers=False, timeout=timeout)
        self.port = int(self._store.port)

    def put(self, name: str, value: object) -> None:
        """Set a value."""
        self._store.set(name, json.dumps(value))

    def get(self, name: str) -> Any:  # noqa: ANN401 (JSON that another node's `put` was given)
        """The value, or None where nothing was set."""
        if not self._store.check([name]):
            return None
        return json.loads(self._store.get(name))


def serve(place: Place) -> Store:
    """The head's store, listening on all addresses of this machine.

    Raises:
        RequestError: where the port is taken; a second store there would otherwise be a client of the first one's run.
    """
    try:
        return Store("127.0.0.1", place.port, serve=True)
    except RuntimeError as error:  # torch's DistNetworkError
        taken = "EADDRINUSE" in str(error)
        why = f"port {place.port} of this machine is taken" if taken else str(error).splitlines()[0]
        fix = f"use cluster.head={place.host}:{place.port + 1} on every machine"
        raise RequestError(Problem("cluster.head", f"{place.host}:{place.port}", why, fix)) from None


def connect(place: Place, timeout: float, asked: Callable[[], bool], say: Callable[[str], None]) -> Store:
    """A node's connection to the head, which may come later.

    Raises:
        RequestError: where nobody has answered in time, or a stop was asked for.
    """
    until, told = time.monotonic() + timeout, False
    where = f"{place.host}:{place.port}"
    while not _listens(place.host, place.port):
        if time.monotonic() > until or asked():
            why = (
                f"the head did not answer within {timeout:g} s" if not asked() else "asked to stop before the head came"
            )
            raise RequestError(
                Problem("cluster.head", where, why, "start the command on the head, with cluster.node_rank=0")
            )
        if not told:
            say(f"node {place.rank} waits for the head, {where}")
            told = True
        time.sleep(POLL_SECONDS)
    found: list[Store] = []

    def attempt() -> None:
        try:
            found.append(Store(place.host, place.port))
        except RuntimeError:
            pass

    thread = threading.Thread(target=attempt, daemon=True)  # what listens there may be anything, and may never answer
    thread.start()
    thread.join(ANSWER_SECONDS)
    if not found:
        why = "what listens there is no head of a run"
        raise RequestError(Problem("cluster.head", where, why, "use another port on every machine"))
    return found[0]


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


class Pump:
    """A node's signs of life, in a thread of its own: a question to a head whose cable is out does not return.

    Attributes:
        seen: when the head answered last, on this node's clock.
        over: what the head said at its end.
        stop: set to pass a request to stop on to the head.
        end: set to report how this node's ranks ended.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._store = Store(place.host, place.port)
        self.seen = time.monotonic()
        self.gone = self.stop = False
        self.over: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        threading.Thread(target=self._run, daemon=True, name="pump").start()

    def _run(self) -> None:
        count = 0
        try:
            while self.over is None:
                count += 1
                self._store.put(f"beat/{self._place.rank}", count)
                if self.stop:
                    self._store.put("flag/stop", 1)
                if self.end is not None:
                    self._store.put(f"end/{self._place.rank}", self.end)
                self.over = self._store.get("over")
                self.seen = time.monotonic()
                time.sleep(BEAT_SECONDS)
        except RuntimeError:
            self.gone = True

    def check(self, limit: float) -> None:
        """Raise where the head has ended or is silent.

        Raises:
            HeadGone: see there.
        """
        silent = time.monotonic() - self.seen
        if self.gone:
            raise HeadGone("its connection was closed")
        if silent > limit:
            raise HeadGone(f"it has been silent for {silent:.0f} s")
        if self.over is not None:
            raise HeadGone("it has ended the run")


def post_facts(store: Store, place: Place, facts: Facts) -> None:
    """Tell the head about this node.

    Raises:
        RequestError: where the head is another run's, or expects another number of nodes.
    """
    until = time.monotonic() + ANSWER_SECONDS
    while (hello := store.get("hello")) is None:
        if time.monotonic() > until:
            raise RequestError(
                Problem("cluster.head", f"{place.host}:{place.port}", "another program's store answers there")
            )
        time.sleep(POLL_SECONDS)
    if hello["started"] or store.get(f"join/{place.rank}") is not None:
        why = f"the run on this head has its node {place.rank} already ({hello['host']}, {hello['nodes']} nodes)"
        raise RequestError(
            Problem(
                "cluster.head", f"{place.host}:{place.port}", why, "use another port for this run, on every machine"
            )
        )
    store.put(f"join/{place.rank}", asdict(facts))
