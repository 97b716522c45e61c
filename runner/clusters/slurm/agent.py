"""A job step on one node: begins the prepared run or resumes it, as the head or as another node."""

from __future__ import annotations

import json
import os
import shutil
import time
from functools import partial
from pathlib import Path

from runner import rundir
from runner.clusters.nodes.facts import facts_of
from runner.clusters.nodes.head import Head
from runner.clusters.nodes.place import Place, split_address
from runner.clusters.nodes.session import member_of, told
from runner.clusters.slurm.cluster import SUBMITTED, submitted
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.errors import EXIT_COMPLETED, EXIT_FAILED, EXIT_PREEMPTED, Problem, RequestError
from runner.execution import Launch, Request, execute
from runner.launch.host_client import Host
from runner.launch.host_pool import needs_no_hub
from runner.launch.process_signals import Stopping, stopping
from runner.launch.watch import console as terminal
from runner.preflight.assets import check_assets
from runner.preflight.check import Checked, known_total_steps, stop_on_errors
from runner.preflight.devices import check_devices, check_precision
from runner.preflight.software import check_software
from runner.recipe import load_recipe
from runner.rundir.heartbeat import HEARTBEATS
from runner.rundir.record import FILE, Record, write_atomically
from runner.single_run import announce, conclude, resume_here


def run_step(run_dir: Path, head: str | None) -> int:
    """This node's part of the run; returns the exit status.

    Args:
        head: HOST:PORT of the head's control store; None for a run on one node.
    """
    started, config = time.monotonic(), rundir.read_config(run_dir)
    if head is None:
        return _bounded(run_dir, config, _work(run_dir, config, started, None))
    host, port = split_address(head)
    place = Place(int(os.environ["SLURM_NODEID"]), config.launcher.num_nodes, host, port)
    if place.rank:
        checked, problems = _checked(config, run_dir)
        return member_of(config, checked, problems, place)
    node = Head(place, config, partial(terminal().print, highlight=False, markup=False))
    return _bounded(run_dir, config, told(node, lambda: _work(run_dir, config, started, node)))


def _checked(config: RunConfig, run_dir: Path) -> tuple[Checked, list[Problem]]:
    """The prepared run and what is wrong with it on this node."""
    recipe = load_recipe(config)
    problems = (
        check_precision(config) + check_devices(config) + check_software(config, recipe, None) + check_assets(config)
    )
    own_file = engine_of(config).file_of_run(run_dir) if config.launcher.config_file else None
    return Checked(config, run_dir, recipe, [], own_file, known_total_steps(config, recipe)), problems


def _work(run_dir: Path, config: RunConfig, started: float, head: Head | None) -> int:
    if (run_dir / FILE).exists():
        if Record.read(run_dir).data["status"] == "completed":
            return EXIT_COMPLETED
        # Slurm runs a job once at a time: what the last attempt left on another node is no sign of life.
        shutil.rmtree(run_dir / HEARTBEATS, ignore_errors=True)

        def join(checked: Checked, stop: Stopping) -> Launch:
            assert head is not None
            head.join(facts_of(config, checked, []), run_dir, lambda: stop.asked, resumed=True)
            return head

        return resume_here(run_dir, [], started, join if head is not None else None)
    return _begin(run_dir, config, started, head)


def _begin(run_dir: Path, config: RunConfig, started: float, head: Head | None) -> int:
    console, (checked, problems) = terminal(), _checked(config, run_dir)
    host = Host(config, offline=needs_no_hub(config))
    try:
        with stopping() as stop:
            request = Request(checked, submitted(run_dir).get("overrides", []), started)
            if head is not None:
                head.join(facts_of(config, checked, problems), run_dir, lambda: stop.asked)
                request.launch = head
            stop_on_errors(problems)
            announce(checked, console)
            return conclude(execute(request, host, stop, console), checked, console)
    finally:
        host.close()


def _bounded(run_dir: Path, config: RunConfig, status: int) -> int:
    """75 means that the job is requeued; after too many attempts without a new step it is not."""
    if status != EXIT_PREEMPTED or not (run_dir / FILE).exists():
        return status
    known = submitted(run_dir)
    ends = [*known.get("ends", []), Record.read(run_dir).data.get("optimizer_steps", 0)]
    write_atomically(run_dir / SUBMITTED, json.dumps({**known, "ends": ends}) + "\n")
    last = ends[-config.cluster.max_requeues - 1 :]
    if len(last) > config.cluster.max_requeues and len(set(last)) == 1:
        why = f"{config.cluster.max_requeues} attempts in a row came to no new optimizer step (still {last[0]})"
        print(RequestError(Problem("cluster.max_requeues", config.cluster.max_requeues, why, "give the job more time")))
        return EXIT_FAILED
    return status
