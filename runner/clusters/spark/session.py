"""The Spark session: found or made, its slots, and what its executors are like."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.clusters.nodes.facts import Facts, findings
from runner.compat.spark_slots import slots
from runner.config import plan
from runner.config.resolve import resolve_machine
from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError
from runner.rundir import provenance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.2
TELL_AFTER_SECONDS = 5.0


@dataclass
class Session:
    """A session, and whether it is ours to stop."""

    spark: SparkSession
    own: bool

    @property
    def master(self) -> str:
        """Its master's URL."""
        return str(self.conf("spark.master"))

    @property
    def is_local(self) -> bool:
        """Whether executors are threads of the driver, on this machine."""
        return re.match(r"local(\[|$)", self.master) is not None

    @property
    def driver_host(self) -> str:
        """The driver's name or address, as executors reach it."""
        return str(self.conf("spark.driver.host") or socket.gethostname())

    def conf(self, key: str) -> str | None:
        """A setting of the session; None where it is not set."""
        value: str | None = self.spark.sparkContext.getConf().get(key)
        return value

    def slots(self) -> int:
        """Tasks that can run at the same time on the executors that are there by now."""
        return slots(self.spark)

    def wait_for_slots(
        self, wanted: int, seconds: float, asked: Callable[[], bool], say: Callable[[str], None]
    ) -> None:
        """Spark itself would wait for ever, without a word.

        Raises:
            RequestError: where they do not come in time, or a stop was asked for.
        """
        began, told = time.monotonic(), False
        while (there := self.slots()) < wanted:
            waited = time.monotonic() - began
            if waited > seconds or asked():
                why = f"{self.master} has {there} free slots after {waited:.0f} s, and every rank needs one"
                fix = (
                    f"use launcher.num_processes={there}"
                    if there
                    else "wait until the cluster has room, or see its page"
                )
                raise RequestError(Problem("launcher.num_processes", wanted, why, fix))
            if waited > TELL_AFTER_SECONDS and not told:
                say(f"waiting for {wanted - there} of {wanted} slots at {self.master}")
                told = True
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End it, where this runner has made it."""
        if self.own:
            self.spark.stop()


def open_session(config: RunConfig) -> Session:
    """The session that is there (a notebook's), or a new one.

    Raises:
        RequestError: where the master does not answer, or another session is in the way.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    wanted, there = config.cluster.master, SparkSession.getActiveSession()
    if there is not None:
        session = Session(there, own=False)
        if wanted and wanted != session.master:
            why = f"this process has a session of {session.master} already"
            raise RequestError(Problem("cluster.master", wanted, why, "leave it out, or stop that session"))
        if config.cluster.conf:
            why = "settings are those of the session that this process has already"
            raise RequestError(Problem("cluster.conf", ", ".join(config.cluster.conf), why, "leave it out"))
        return session
    master = wanted or os.environ.get("MASTER") or f"local[{plan.world_size(resolve_machine(config)[0])}]"
    interpreter = config.cluster.conf.get("spark.pyspark.python") or (
        sys.executable if master.startswith("local") else None
    )
    if interpreter:  # only spark-submit reads that setting
        os.environ.setdefault("PYSPARK_PYTHON", interpreter)
    builder: Any = SparkSession.builder
    builder = builder.master(master).appName("finetune-runner").config("spark.ui.showConsoleProgress", "false")
    for key, value in config.cluster.conf.items():
        builder = builder.config(key, value)
    try:
        session = Session(builder.getOrCreate(), own=True)
        session.spark.sparkContext.setLogLevel("ERROR")
    except (PySparkException, OSError, ValueError, _java_error()) as error:
        raise RequestError(
            Problem("cluster.master", master, first_line(error), "see Spark's own lines above")
        ) from None
    return session


def _java_error() -> type[Exception]:
    from py4j.protocol import Py4JError

    error: type[Exception] = Py4JError
    return error


def first_line(error: BaseException) -> str:
    """What a Java or Python error says, without its stack."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString() if java is not None else error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b.*: ", line) and "java." not in line]
    return (python or lines or [type(error).__name__])[-1 if python else 0][:300]


def master_problem(master: str) -> Problem | None:
    """Whether a standalone master listens; pyspark itself would try for a minute."""
    found = re.match(r"spark://([^:,]+):(\d+)", master)
    if found is None:
        if re.match(r"(local|yarn|k8s:|spark:)", master):
            return None
        return Problem(
            "cluster.master", master, "this is no master of Spark", "use spark://HOST:7077, yarn or local[2]"
        )
    try:
        socket.create_connection((found[1], int(found[2])), timeout=5).close()
    except (OSError, OverflowError) as error:
        return Problem(
            "cluster.master", master, f"nobody answers there ({error})", "start the master, or fix the address"
        )
    return None


class Executors:
    """What the executors are like, by a small barrier job with as many tasks as the ranks."""

    def __init__(self, session: Session, tasks: int) -> None:
        self._session, self._tasks = session, tasks
        self._answers: list[dict[str, Any]] = []
        self._error: BaseException | None = None

    def ask(self, probe: dict[str, str], seconds: float, asked: Callable[[], bool]) -> list[dict[str, Any]]:
        """Host, versions and whether the probe's file can be read, of each task.

        Raises:
            RequestError: where the job fails or does not end in time.
        """
        thread = threading.Thread(target=self._run, args=(probe,), daemon=True)
        thread.start()
        until = time.monotonic() + seconds
        while thread.is_alive() and time.monotonic() < until and not asked():
            thread.join(POLL_SECONDS)
        if thread.is_alive():
            self._session.spark.sparkContext.cancelAllJobs()
            why = "asked to stop before executors answered" if asked() else f"no answer within {seconds:g} s"
            raise RequestError(Problem("cluster.join_timeout_seconds", seconds, why, "see Spark's own page"))
        if self._error is not None:
            fix = "the executors need the runner and its libraries; see docs/cluster.md"
            raise RequestError(Problem("cluster", "spark", first_line(self._error), fix))
        return self._answers

    def _run(self, probe: dict[str, str]) -> None:
        try:
            context = self._session.spark.sparkContext
            tasks = context.parallelize(range(self._tasks), self._tasks).barrier()
            self._answers = tasks.mapPartitions(_look(probe)).collect()
        except Exception as error:  # noqa: BLE001 - told in the thread that waits
            self._error = error


def _look(probe: dict[str, str]) -> Callable[[Iterable[int]], list[dict[str, Any]]]:
    """A function that pickles by value: executors may lack the runner."""

    def look(_rows: Iterable[int]) -> list[dict[str, Any]]:
        import socket
        from pathlib import Path

        try:
            shared = Path(probe["file"]).read_text() == probe["content"]
        except OSError:
            shared = False
        answer = {"host": socket.gethostname(), "shared": shared, "versions": None}
        try:
            import pandas  # noqa: F401 - the distributors need both
            import pyarrow  # noqa: F401

            from runner.rundir import provenance

            answer["versions"] = provenance.versions()
        except ImportError as error:
            answer["error"] = str(error)
        return [answer]

    look.__module__ = "__main__"  # cloudpickle takes functions of this module by value
    return look


def executor_problems(answers: list[dict[str, Any]]) -> list[Problem]:
    """What executors lack, and versions that differ from the driver's."""
    lacking = {(answer["host"], answer["error"]) for answer in answers if "error" in answer}
    found = [
        Problem("cluster", "spark", f"on executor {host}: {error}", "pip install 'finetune-runner[spark]' there")
        for host, error in sorted(lacking)
    ]
    nodes = {0: Facts(socket.gethostname(), {}, provenance.versions(), None, None)}
    hosts = {answer["host"]: answer["versions"] for answer in answers if answer["versions"]}
    nodes |= {number: Facts(host, {}, hosts[host], None, None) for number, host in enumerate(sorted(hosts), 1)}
    return found + findings(nodes)
