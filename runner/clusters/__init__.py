"""Where ranks run: one object for each cluster. Nothing outside this room asks which one it is."""

from __future__ import annotations

from runner.clusters.cluster import Cluster
from runner.config.schema import RunConfig


def of(config: RunConfig) -> Cluster:
    """The cluster that a configuration names."""
    return by_name(config.cluster.name)


def by_name(name: str) -> Cluster:
    """The cluster of this name."""
    from runner.clusters.local import Local
    from runner.clusters.nodes import Nodes
    from runner.clusters.slurm import Slurm
    from runner.clusters.spark import Spark

    known: dict[str, Cluster] = {"local": Local(), "nodes": Nodes(), "slurm": Slurm(), "spark": Spark()}
    return known[name]
