"""The libraries that ranks need, imported once by their parent, as fast as can be (figures: benchmarks/start_up_floor.md)."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from runner.lazy_import import imported_when_called

LIBRARIES = (
    "torch",
    "torch.distributed.launcher.api",
    "accelerate",
    "accelerate.commands.launch",
    "transformers",
    "transformers.modeling_utils",
    "pyarrow",
    "runner.train.worker",
)
# What every recipe's metrics need: rank 0 imports it after its first step, in each cell of a sweep again unless the host has.
METRICS = ("datasets", "evaluate")
# DeepSpeed's ZeRO imports it in the first backward pass, whatever the optimizer is.
MUON = "deepspeed.runtime.zero.muon.muon_optimizer"
DEEPSPEED = ("deepspeed", MUON)


def preload(names: Sequence[str]) -> None:
    """Import modules before ranks are forked; one that cannot be imported is reported on standard error and left to the ranks.

    Python's collector looks at everything again and again while thousands of modules appear, a quarter of the
    time, and finds nothing. It stays off in this process; what exists by the end is taken out of its sight, so
    that it does not copy the pages that forked ranks share.
    """
    gc.disable()
    # transformers' losses import SciPy's matching for object detection at every start, `evaluate` the statistics of its
    # evaluators: 0.8 s, 90 MB in each rank, and no run here calls either.
    with (
        imported_when_called("scipy.optimize", "linear_sum_assignment"),
        imported_when_called("scipy.stats", "bootstrap"),
    ):
        for name in names:
            try:
                import_muon() if name == MUON else importlib.import_module(name)
            except Exception:  # a rank that needs it says so in its own log
                traceback.print_exc()
    gc.freeze()


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


def _as_it_is(model: Callable[..., Any] | None = None, **_: Any) -> Any:
    """`torch.compile` as a function or as a decorator with arguments, compiling nothing."""
    return model if model is not None else _as_it_is
