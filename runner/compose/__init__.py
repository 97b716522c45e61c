"""Overrides → typed configuration. Hydra lives in this package and nowhere else."""

from runner.compose.app import Composed, compose_run

__all__ = ["Composed", "compose_run"]
