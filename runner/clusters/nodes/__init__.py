"""`cluster=nodes`: machines that reach each other, by hand on each or from the first one over ssh."""

from runner.clusters.nodes.cluster import Nodes

__all__ = ["Nodes"]
