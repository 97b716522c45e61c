"""DeepSpeed's ZeRO imports the Muon optimizer in its first backward pass, whatever the optimizer is.

Its functions are decorated by `torch.compile`, which imports torch's compiler: 0.8 s and 40 MB in each rank. Neither
library offers a way around, so `torch.compile` gives way while that one module is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

CHECKED = {"deepspeed": ">=0.19,<0.20", "torch": ">=2.7,<3"}
MUON = "deepspeed.runtime.zero.muon.muon_optimizer"


def import_muon() -> None:
    """Import the Muon optimizer, which no run here uses, without torch's compiler for its functions (0.8 s, 40 MB).

    A function that was to be compiled runs as it is written: the same numbers. Later `torch.compile` calls compile.
    """
    if MUON not in sys.modules:
        with _nothing_compiled():
            importlib.import_module(MUON)


@contextlib.contextmanager
def _nothing_compiled() -> Iterator[None]:
    import torch

    compiler = torch.compile
    torch.compile = _as_it_is
    try:
        yield
    finally:
        torch.compile = compiler


def _as_it_is(model: Callable[..., Any] | None = None, **_: object) -> Callable[..., Any]:
    """`torch.compile` as a function or as a decorator with arguments, compiling nothing."""
    return model if model is not None else _as_it_is
