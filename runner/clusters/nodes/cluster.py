"""The nodes cluster as one object."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from runner.clusters.local import Local
from runner.clusters.nodes.place import Place, own_address, place_of
from runner.clusters.nodes.ssh import OverSsh, hosts_of, is_here
from runner.compose import Composed
from runner.config.clusters import foreign_keys
from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError

BY_HAND = ("node_rank", "head")


class Nodes(Local):
    """Machines that reach each other. State and stop are those of a local run: the head holds the record."""

    name = "nodes"

    def problems(self, config: RunConfig, explicit: Collection[str]) -> list[Problem]:
        """What can be seen on this node alone."""
        cluster, nodes = config.cluster, config.launcher.num_nodes
        found = foreign_keys(self.name, explicit)
        if cluster.hosts is not None and cluster.hostfile is not None:
            found.append(
                Problem("cluster.hostfile", cluster.hostfile, "cluster.hosts names machines, too", "leave one out")
            )
        if nodes < 2 and not (cluster.hosts or cluster.hostfile):
            why = "cluster=nodes runs over several machines"
            found.append(Problem("launcher.num_nodes", nodes, why, "use launcher.num_nodes=2, or cluster=local"))
        if config.launcher.max_restarts:
            why = "over several machines ranks that are started again meet the dead ones' addresses"
            found.append(
                Problem("launcher.max_restarts", config.launcher.max_restarts, why, "leave it out, and resume the run")
            )
        return found

    def submit(self, composed: Composed, started: float) -> int:
        """As the head or as another node, whichever this machine is."""
        return _Typed(composed.config, composed.overrides).run(
            partial(_head_run, composed, started), partial(_member_run, composed)
        )

    def resume(self, run_dir: Path, overrides: list[str], config: RunConfig, started: float) -> int:
        """As `submit`."""
        return _Typed(config, []).run(
            partial(_head_resume, run_dir, overrides, started), partial(_member_resume, config)
        )


class _Typed:
    """What was typed on this machine: one node's part, or all of it for ssh."""

    def __init__(self, config: RunConfig, arguments: list[str]) -> None:
        self._config, self._arguments = config, arguments

    def run(self, head: Callable[[Place, OverSsh | None], int], member: Callable[[Place], int]) -> int:
        hosts = hosts_of(self._config)
        by_hand = self._config.cluster.node_rank is not None
        if not hosts or by_hand:
            place = place_of(self._config)
            return head(place, None) if place.rank == 0 else member(place)
        self._check(hosts)
        place = Place(0, len(hosts), own_address(hosts[1], 0), 0)
        return head(place, OverSsh(hosts, self._arguments))

    def _check(self, hosts: list[str]) -> None:
        problems = []
        if len(hosts) != self._config.launcher.num_nodes:
            why = f"but {len(hosts)} hosts are named"
            problems.append(
                Problem(
                    "launcher.num_nodes", self._config.launcher.num_nodes, why, f"use launcher.num_nodes={len(hosts)}"
                )
            )
        if not is_here(hosts[0]):
            why = "the first host is the head, and it is not this machine"
            problems.append(
                Problem("cluster.hosts", hosts[0], why, "type the command there, or name this machine first")
            )
        if problems:
            raise RequestError(problems)


def _head_run(composed: Composed, started: float, place: Place, remote: OverSsh | None) -> int:
    from runner.clusters.nodes.session import run_as_head

    return run_as_head(composed, started, place, remote)


def _member_run(composed: Composed, place: Place) -> int:
    from runner.clusters.nodes.session import run_as_member

    return run_as_member(composed, place)


def _head_resume(run_dir: Path, overrides: list[str], started: float, place: Place, _remote: OverSsh | None) -> int:
    from runner.clusters.nodes.session import resume_as_head

    return resume_as_head(run_dir, overrides, started, place)


def _member_resume(config: RunConfig, place: Place) -> int:
    from runner.clusters.nodes.session import member_of

    return member_of(config, None, [], place)
