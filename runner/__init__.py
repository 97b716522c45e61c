"""A declarative runner for fine-tuning experiments under accelerate and DeepSpeed.

In a program: `runner.run([...])`; `runner.api` has render, estimate, fit and report, too.
"""

from __future__ import annotations

__version__ = "0.1.0"
_FROM_API = ("RequestError", "RunFailed", "estimate", "run")


def __getattr__(name: str) -> object:
    """The Python interface, imported when it is asked for: the command line does without."""
    if name in _FROM_API:
        from runner import api

        return getattr(api, name)
    raise AttributeError(f"module 'runner' has no attribute {name!r}")
