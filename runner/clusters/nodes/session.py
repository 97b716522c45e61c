"""A run over several machines from the checked request to its result, on the head and on the other nodes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from runner.clusters.nodes.facts import Facts, facts_of, own_problems
from runner.clusters.nodes.head import Head
from runner.clusters.nodes.member import Member
from runner.clusters.nodes.place import Place
from runner.clusters.nodes.ssh import OverSsh, Remote
from runner.compose import Composed
from runner.config.resolve import resolve_machine
from runner.config.schema import RunConfig
from runner.errors import EXIT_FAILED, Problem, RequestError
from runner.execution import Launch
from runner.launch.host_client import Host
from runner.launch.host_pool import needs_no_hub
from runner.launch.process_signals import Stopping, stopping
from runner.launch.watch import console as terminal
from runner.preflight.check import Checked, check


def run_as_head(composed: Composed, started: float, place: Place, remote: OverSsh | None) -> int:
    """Node 0: gather, run, tell.

    Raises:
        RequestError: with what stands in the way on any node.
    """
    from runner.single_run import run_here

    console = terminal()
    head = Head(place, composed.config, partial(console.print, highlight=False, markup=False))
    others = None
    if remote is not None:
        others = Remote(remote.hosts, remote.arguments, f"{place.host}:{head.port}")

    def join(checked: Checked | None, problems: list[Problem], stop: Stopping) -> Launch:
        config = checked.config if checked else resolve_machine(composed.config)[0]
        head.join(
            _with_address(facts_of(config, checked, problems), place), composed.run_dir, lambda: _over(stop, others)
        )
        return head

    try:
        return told(head, lambda: run_here(composed, started, join))
    finally:
        if others is not None:
            others.close()


def _over(stop: Stopping, others: Remote | None) -> bool:
    return stop.asked or bool(others is not None and others.ended())


def told(head: Head, run: Callable[[], int]) -> int:
    """Whatever happens, the other nodes are told."""
    status = EXIT_FAILED
    try:
        status = run()
    except RequestError:
        status = 2
        raise
    finally:
        head.close(status, f"the head has ended the run, exit status {status}")
    return status


def _with_address(facts: Facts, place: Place) -> Facts:
    facts.address = place.host
    return facts


def resume_as_head(run_dir: Path, overrides: list[str], started: float, place: Place) -> int:
    """As `run_as_head`, for a run that is resumed."""
    from runner.single_run import resume_here

    console = terminal()
    from runner import rundir

    config = rundir.read_config(run_dir)
    head = Head(place, config, partial(console.print, highlight=False, markup=False))

    def join(checked: Checked, stop: Stopping) -> Launch:
        head.join(facts_of(checked.config, checked, []), run_dir, lambda: stop.asked, resumed=True)
        return head

    return told(head, lambda: resume_here(run_dir, overrides, started, join))


def run_as_member(composed: Composed, place: Place) -> int:
    """Another node: its own checks, which the head tells together with all others'."""
    problems: list[Problem] = []
    checked = None
    try:
        checked = check(composed)
    except RequestError as error:
        problems = own_problems(error)
    config = checked.config if checked else resolve_machine(composed.config)[0]
    return member_of(config, checked, problems, place)


def member_of(config: RunConfig, checked: Checked | None, problems: list[Problem], place: Place) -> int:
    """Join and work."""
    console = terminal()
    say = partial(console.print, highlight=False, markup=False)
    host = Host(config, offline=needs_no_hub(config))
    try:
        with stopping() as stop:
            return Member(place, config, stop, say).serve(facts_of(config, checked, problems), host)
    finally:
        host.close()
        os.environ.pop("TORCH_CPP_LOG_LEVEL", None)
