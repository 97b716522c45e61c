"""A node that is not the head: joins, starts its ranks, says how they ended."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner import rundir
from runner.clusters.nodes.control import ANSWER_SECONDS, POLL_SECONDS, HeadGone, Pump, Store, connect, post_facts
from runner.clusters.nodes.facts import Facts
from runner.clusters.nodes.place import Place, network_variables, own_address
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.engines.base import OpBuild
from runner.errors import EXIT_BAD_REQUEST, EXIT_FAILED
from runner.launch.host_client import Host, HostDied
from runner.launch.meeting import Meeting
from runner.launch.process_signals import Stopping
from runner.rundir.opening import AGENT_START
from runner.rundir.rank_errors import errors_of_attempt
from runner.rundir.record import write_atomically
from runner.rundir.requests import CONTROL_STORE

LOG_CHARACTERS = 200_000  # of the end of a rank's log, sent to a head that does not share the folder


class Member:
    """One node's work from the join to the head's last word."""

    def __init__(self, place: Place, config: RunConfig, stop: Stopping, say: Callable[[str], None]) -> None:
        self._place, self._config, self._stop, self._say = place, config, stop, say
        self._shared = True
        self._started = time.monotonic()

    def serve(self, facts: Facts, host: Host) -> int:
        """Do it all; returns the exit status, which is the head's.

        Raises:
            RequestError: where the head cannot be reached.
        """
        timeout = self._config.cluster.join_timeout_seconds
        store = connect(self._place, timeout, lambda: self._stop.asked, self._say)
        try:
            post_facts(store, self._place, facts)
            pump = Pump(self._place)
            launch = self._accepted(store, pump)
            if launch is None:
                return EXIT_BAD_REQUEST
            try:
                pump.end = self._work(launch, host, pump)
            except HeadGone:
                if pump.over is None:
                    raise
            return self._last_word(store, pump)
        except (RuntimeError, HeadGone) as error:  # torch's DistNetworkError: the connection is closed
            self._say(f"failed: the head ({self._place.host}) is gone: {str(error).splitlines()[0]}")
            return EXIT_FAILED

    def _accepted(self, store: Store, pump: Pump) -> dict[str, Any] | None:
        """What to launch; None where the nodes do not fit together, with the findings printed."""
        probed = False
        while True:
            verdict, probe = store.get("verdict"), store.get("probe")
            if verdict is not None and verdict["problems"]:
                for line in verdict["problems"]:
                    self._say(line)
                store.put(f"read/{self._place.rank}", 1)
                return None
            if probe is not None and not probed:
                self._answer(store, probe)
                probed = True
            launch: dict[str, Any] | None = store.get("launch")
            if launch is not None:
                return launch
            pump.stop = self._stop.asked
            pump.check(self._config.cluster.node_timeout_seconds)
            time.sleep(POLL_SECONDS)

    def _answer(self, store: Store, probe: dict[str, str]) -> None:
        try:
            self._shared = Path(probe["file"]).read_text() == probe["content"]
        except OSError:
            self._shared = False
        head = socket.gethostbyname(self._place.host)
        self._address = own_address(head, self._place.port)
        answer = {"shared": self._shared, "address": self._address, "head_address": head}
        store.put(f"probed/{self._place.rank}", answer)

    def _work(self, launch: dict[str, Any], host: Host, pump: Pump) -> dict[str, Any]:
        run_dir = Path(launch["run_dir"])
        if not self._shared:
            run_dir.mkdir(parents=True, exist_ok=True)
            for name, text in launch["files"].items():
                write_atomically(run_dir / name, text)
        config, rank = rundir.read_config(run_dir), self._place.rank
        address = launch["endpoint"].rpartition(":")[0]
        meeting = Meeting(
            self._place.nodes, rank, launch["endpoint"], launch["run_id"], self._address, launch["timeout"]
        )
        environment = meeting.variable() | {
            CONTROL_STORE: f"{address}:{self._place.port}",
            AGENT_START: str(self._started),
            "RUNNER_LAUNCH_LOG": f"launch_{rank}.log",
        }
        environment |= network_variables(self._address, config.cluster.interface)

        def watch() -> None:
            pump.stop = self._stop.asked
            pump.check(config.cluster.node_timeout_seconds)

        try:
            engine = engine_of(config)
            with engine.run_resources(config, run_dir) if not self._shared else contextlib.nullcontext():
                own_file = engine.file_of_run(run_dir) if config.launcher.config_file else None
                engine.build_ops(config, own_file, OpBuild(host, run_dir, environment, watch, self._say))
                outcome = host.run("run", run_dir, environment, watch)
        except HostDied as died:
            outcome = {"status": "failed", "error": f"the host process ended: {died}"}
        return self._report(run_dir, outcome)

    def _report(self, run_dir: Path, outcome: dict[str, Any]) -> dict[str, Any]:
        per_node = int(self._config.launcher.num_processes)
        own = range(self._place.rank * per_node, (self._place.rank + 1) * per_node)
        errors = [error for error in errors_of_attempt(run_dir) if error["rank"] in own]
        logs = {} if self._shared else {path.name: _tail(path) for path in (run_dir / rundir.LOGS).glob("*.log")}
        return {**outcome, "errors": errors, "logs": logs}

    def _last_word(self, store: Store, pump: Pump) -> int:
        """Wait for the head's result; its exit status is this node's, too."""
        until = time.monotonic() + ANSWER_SECONDS
        while pump.over is None and time.monotonic() < until and not pump.gone:
            time.sleep(POLL_SECONDS)
        if pump.over is None:
            raise HeadGone("it did not say how the run ended")
        self._say(pump.over["line"])
        with contextlib.suppress(RuntimeError):
            store.put(f"read/{self._place.rank}", 1)
        return int(pump.over["exit_status"])


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:]
    return ""
