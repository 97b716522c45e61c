"""What is known of each cluster before anything of it is asked: the keys it reads, whether it spans machines.

The objects that run on a cluster stand in `runner/clusters/`, above the checks, which need only this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runner.config.schema import RunConfig
from runner.errors import Problem


@dataclass(frozen=True)
class ClusterKind:
    """One value of `cluster=`.

    Attributes:
        keys: fields of the section `cluster` that it reads.
        several_machines: whether one run may span more than one machine.
        here: whether its runs are processes of the machine where the command is typed, and nowhere else.
    """

    keys: frozenset[str] = frozenset()
    several_machines: bool = False
    here: bool = False


_BETWEEN_NODES = ("interface", "join_timeout_seconds", "node_timeout_seconds")
KINDS: dict[str, ClusterKind] = {
    "local": ClusterKind(here=True),
    "nodes": ClusterKind(frozenset((*_BETWEEN_NODES, "hosts", "hostfile", "node_rank", "head")), True),
    "slurm": ClusterKind(
        frozenset(
            (
                *_BETWEEN_NODES,
                *("partition", "account", "qos", "constraint", "time_minutes", "cpus_per_node", "gpus_per_node"),
                *("memory_per_node", "exclusive", "signal_seconds", "max_requeues", "wait", "setup", "options"),
            )
        ),
        True,
    ),
    "spark": ClusterKind(frozenset((*_BETWEEN_NODES, "master", "local_mode", "conf")), True),
}


def kind_of(config: RunConfig) -> ClusterKind:
    """The kind of the cluster that a configuration names."""
    return KINDS[config.cluster.name]


def foreign_keys(name: str, explicit: Iterable[str]) -> list[Problem]:
    """Keys of other clusters that were typed for the cluster `name`: they would have no effect."""
    kind = KINDS[name]
    typed = [key for key in explicit if key.startswith("cluster.") and key.split(".")[1] not in kind.keys]
    reads = ", ".join(f"cluster.{key}" for key in sorted(kind.keys)) or "none"
    return [
        Problem(
            key,
            None,
            f"cluster={name} does not read this key; it reads {reads}",
            f"leave it out, or choose its cluster with cluster={_reader(key.split('.')[1])}",
        )
        for key in typed
    ]


def _reader(field: str) -> str:
    return next((name for name, kind in KINDS.items() if field in kind.keys), "local")


def one_run_only(config: RunConfig, why: str) -> list[Problem]:
    """A problem for what runs on this machine only, where another cluster was chosen."""
    if kind_of(config).here:
        return []
    return [Problem("cluster", config.cluster.name, why, "use cluster=local, or start single runs")]
