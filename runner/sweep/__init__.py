"""Multirun: many cells, one after the other, each a run with a record of its own."""

from runner.sweep.session import run_sweep

__all__ = ["run_sweep"]
