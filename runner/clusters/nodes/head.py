"""The head: gathers the nodes, tells them what to run, watches over them, and names the one that fails."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner import rundir
from runner.clusters.nodes.control import POLL_SECONDS, Store, serve
from runner.clusters.nodes.facts import Facts, findings
from runner.clusters.nodes.place import Place, network_variables
from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError
from runner.launch.host_client import Host
from runner.launch.meeting import Meeting
from runner.rundir.failure import Failure, KnownFailure
from runner.rundir.rank_errors import keep_error
from runner.rundir.record import FILE as RECORD
from runner.rundir.requests import CONTROL_STORE, STOP_FILE

RENDERED = (".yaml", ".json", ".sh")
TELL_AFTER_SECONDS = 3.0
OTHERS_END_SECONDS = 6.0  # from this node's own failure to the others' reports
GONE_SECONDS = 3.0  # a node that says nothing for so long after a failure is the one that is gone


class Head:
    """Node 0's side of the control store."""

    def __init__(self, place: Place, config: RunConfig, say: Callable[[str], None]) -> None:
        self._place, self._config, self._say = place, config, say
        self._store: Store = serve(place)
        self.port = self._store.port
        self._facts: dict[int, Facts] = {}
        self._addresses: dict[int, dict[str, Any]] = {}
        self._beats: dict[int, tuple[int, float]] = {}
        self._ends: dict[int, dict[str, Any]] = {}
        self._checked_at = 0.0
        self._shared = True
        self._hello(started=False)

    def _hello(self, started: bool) -> None:
        self._store.put("hello", {"host": socket.gethostname(), "nodes": self._place.nodes, "started": started})

    @property
    def _others(self) -> range:
        return range(1, self._place.nodes)

    def join(self, own: Facts, run_dir: Path, asked: Callable[[], bool], resumed: bool = False) -> None:
        """Wait for all nodes, compare them, see whether they share the run folder.

        Raises:
            RequestError: with everything that stands in the way, which all nodes print.
        """
        self._facts[0] = own
        try:
            self._wait_for("join", asked)
            self._hello(started=True)
            for number in self._others:
                self._facts[number] = Facts(**self._store.get(f"join/{number}"))
            problems = findings(self._facts) or self._probe(run_dir, resumed, asked)
            if problems:
                raise RequestError(problems)
        except RequestError as error:
            self._refuse(error)
            raise
        self._store.put("verdict", {"problems": []})
        names = ", ".join(f"{number} {facts.host}" for number, facts in sorted(self._facts.items()))
        self._say(f"nodes      {names}{'' if self._shared else ' (the run folder is the head’s alone)'}")

    def _refuse(self, error: RequestError) -> None:
        lines = [problem.line() for problem in error.problems]
        self._store.put("verdict", {"problems": lines})
        until = time.monotonic() + TELL_AFTER_SECONDS
        came = [number for number in self._others if self._store.get(f"join/{number}") is not None]
        while time.monotonic() < until and any(self._store.get(f"read/{number}") is None for number in came):
            time.sleep(POLL_SECONDS)

    def _wait_for(self, what: str, asked: Callable[[], bool]) -> None:
        began, told = time.monotonic(), False
        limit = self._config.cluster.join_timeout_seconds
        while missing := [number for number in self._others if self._store.get(f"{what}/{number}") is None]:
            waited = time.monotonic() - began
            names = ", ".join(map(str, missing))
            if waited > limit or asked():
                why = (
                    f"node {names} did not come within {limit:g} s"
                    if not asked()
                    else f"stopped before node {names} came"
                )
                fix = "start the same command there with its cluster.node_rank"
                raise RequestError(Problem("launcher.num_nodes", self._place.nodes, why, fix))
            if waited > TELL_AFTER_SECONDS and not told:
                self._say(f"waiting for node {names} of {self._place.nodes}")
                told = True
            time.sleep(POLL_SECONDS)

    def _probe(self, run_dir: Path, resumed: bool, asked: Callable[[], bool]) -> list[Problem]:
        """A random file in the run folder, which every node that shares it can read."""
        there = run_dir.is_dir()
        run_dir.mkdir(parents=True, exist_ok=True)
        content = secrets.token_hex(16)
        probe = run_dir / f".nodes-{content[:8]}"
        probe.write_text(content)
        try:
            self._store.put("probe", {"file": str(probe), "content": content})
            self._wait_for("probed", asked)
        finally:
            probe.unlink()
        self._addresses = {number: self._store.get(f"probed/{number}") for number in self._others}
        apart = [number for number in self._others if not self._addresses[number]["shared"]]
        self._shared = not apart
        if not apart or not (resumed or writes_checkpoints(self._config)):
            return []
        if not there:
            shutil.rmtree(run_dir, ignore_errors=True)
        names = ", ".join(f"node {number} ({self._facts[number].host})" for number in apart)
        why = f"{names} does not share this folder, and a checkpoint needs every rank's part in one"
        fix = "use hydra.run.dir=DIR on a shared file system, or train without: checkpoint.on_preemption=false"
        return [Problem("hydra.run.dir", run_dir, why, fix)]

    def run(self, host: Host, run_dir: Path, environment: dict[str, str], watch: Callable[[], None]) -> dict[str, Any]:
        """Start the ranks of all nodes, wait for their end.

        Raises:
            KnownFailure: where a node is gone or has failed without an error of a rank.
        """
        address = self._addresses[1]["head_address"] if self._addresses else "127.0.0.1"
        endpoint = f"{address}:{_free_port()}"
        run_id = f"{run_dir.name}-{secrets.token_hex(4)}"
        timeout = int(self._config.launcher.start_timeout_seconds)
        meeting = Meeting(self._place.nodes, 0, endpoint, run_id, address, timeout)
        own = meeting.variable() | {CONTROL_STORE: f"{address}:{self.port}"}
        own |= network_variables(address, self._config.cluster.interface)
        rendered = [path for path in run_dir.iterdir() if path.suffix in RENDERED and path.name != RECORD]
        files = {path.name: path.read_text(encoding="utf-8") for path in rendered}
        self._store.put(
            "launch",
            {"run_dir": str(run_dir), "files": files, "endpoint": endpoint, "run_id": run_id, "timeout": timeout},
        )
        now = time.monotonic()
        self._beats = dict.fromkeys(self._others, (0, now))

        def watching() -> None:
            watch()
            self._check(run_dir)

        outcome = host.run("run", run_dir, environment | own, watching)
        return self._settle(run_dir, outcome)

    def _check(self, run_dir: Path) -> None:
        now = time.monotonic()
        if now - self._checked_at < POLL_SECONDS:
            return
        self._checked_at = now
        if (run_dir / STOP_FILE).exists():
            self._store.put(f"flag/{STOP_FILE}", 1)
        self._read()
        limit = self._config.cluster.node_timeout_seconds
        for number in self._others:
            end, (_, seen) = self._ends.get(number), self._beats[number]
            if end is None and now - seen > limit:
                raise self._lost(run_dir, [number], f"has been silent for {now - seen:.0f} s")
            if end is not None and end["status"] == "failed" and now - end["at"] > OTHERS_END_SECONDS:
                raise self._failed(run_dir, number, end)

    def _read(self) -> None:
        """Signs of life and ends, stamped by this clock."""
        now = time.monotonic()
        for number in self._others:
            count = self._store.get(f"beat/{number}") or 0
            if count != self._beats[number][0]:
                self._beats[number] = (count, now)
            end = self._store.get(f"end/{number}")
            if end is not None and number not in self._ends:
                self._ends[number] = {**end, "at": now}

    def _settle(self, run_dir: Path, outcome: dict[str, Any]) -> dict[str, Any]:
        """The outcome of all nodes, once they have said theirs."""
        until = time.monotonic() + OTHERS_END_SECONDS
        while time.monotonic() < until:
            self._read()
            if len(self._ends) == self._place.nodes - 1:
                break
            time.sleep(POLL_SECONDS)
        self._bring_back(run_dir)
        if outcome["status"] != "failed":
            return outcome
        now = time.monotonic()
        gone = [n for n in self._others if n not in self._ends and now - self._beats[n][1] > GONE_SECONDS]
        if gone:
            raise self._lost(run_dir, gone, "is gone: its processes or the machine have ended")
        failures = dict(outcome.get("failures", {}))
        for end in self._ends.values():
            failures = {**failures, **end.get("failures", {})}
        return {**outcome, "failures": failures}

    def _bring_back(self, run_dir: Path) -> None:
        """Errors of the other nodes with this clock's time; without a shared folder their logs, too."""
        for end in self._ends.values():
            for error in end.get("errors", []):
                keep_error(run_dir, error["rank"], {**error, "time": end["at"]})
            for name, text in {}.items() if self._shared else end.get("logs", {}).items():
                (run_dir / rundir.LOGS / os.path.basename(name)).write_text(text, encoding="utf-8")

    def _lost(self, run_dir: Path, numbers: list[int], what: str) -> KnownFailure:
        per_node = int(self._config.launcher.num_processes)
        first = numbers[0] * per_node
        ranks = f"rank {first}" if per_node == 1 else f"ranks {first}–{first + per_node - 1}"
        names = ", ".join(f"node {number} ({self._facts[number].host}, {ranks})" for number in numbers)
        return KnownFailure(Failure(None, f"{names} {what}", rundir.log_of(run_dir, first)))

    def _failed(self, run_dir: Path, number: int, end: dict[str, Any]) -> KnownFailure:
        self._bring_back(run_dir)
        reason = end.get("error") or f"failed: {end.get('failures')}"
        name = f"node {number} ({self._facts[number].host})"
        return KnownFailure(Failure(None, f"{name}: {reason}", run_dir / rundir.LOGS / f"launch_{number}.log"))

    def close(self, exit_status: int, line: str) -> None:
        """Tell all nodes how the run ended, and give them a moment to read it."""
        self._store.put("over", {"exit_status": exit_status, "line": line})
        until = time.monotonic() + TELL_AFTER_SECONDS
        while time.monotonic() < until and any(
            self._store.get(f"read/{n}") is None for n in self._facts if n and n not in self._silent()
        ):
            time.sleep(POLL_SECONDS)

    def _silent(self) -> list[int]:
        now = time.monotonic()
        return [number for number, (_, seen) in self._beats.items() if now - seen > GONE_SECONDS]


def writes_checkpoints(config: RunConfig) -> bool:
    """Whether a run may come to write one."""
    asked = config.checkpoint
    wanted = (asked.every_steps, asked.every_epoch, asked.every_minutes, asked.keep_best, asked.on_preemption)
    return config.mode == "train" and any(wanted)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
