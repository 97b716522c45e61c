"""Faults on request, for tests: RUNNER_FAULT=KIND:PHASE:STEP[:RANK], several separated by commas.

KIND is oom (torch's own out-of-memory class is raised: a real CUDA one cannot exist on CPU), error, hang,
kill (SIGKILL to itself), full (from then on no file of this rank grows beyond 512 KiB, as on a full disk), nan
(a parameter becomes NaN), `sleep` (0.2 s) or `sleep=SECONDS`. PHASE is one of runner.train.timing.PHASES. STEP is
the optimizer step under way, from 1 (0 before the first), or `*` for every one. Without RANK every rank is struck.
Ranks that torch elastic has started again are not struck.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.rundir import restart_count

if TYPE_CHECKING:
    import torch

VARIABLE = "RUNNER_FAULT"
SLEEP_SECONDS = 0.2
FULL_AT_BYTES = 512 * 1024


class InjectedFault(RuntimeError):
    """The fault that was asked for."""


@dataclass(frozen=True)
class Fault:
    """One fault: what happens, and where."""

    kind: str
    phase: str
    step: int | None
    rank: int | None
    seconds: float = SLEEP_SECONDS


def parse_faults(text: str) -> list[Fault]:
    """The faults in the text of RUNNER_FAULT. Raises ValueError for one that cannot be read."""
    return [_parse(part) for part in text.split(",") if part.strip()]


def _parse(text: str) -> Fault:
    kind, phase, step, *rank = text.strip().split(":")
    name, _, seconds = kind.partition("=")
    if name not in ("oom", "error", "hang", "kill", "full", "nan", "sleep"):
        raise ValueError(f"{VARIABLE}={text}: no such fault")
    return Fault(
        name, phase, None if step == "*" else int(step), int(rank[0]) if rank else None, float(seconds or SLEEP_SECONDS)
    )


class Faults:
    """Called at the start of every phase; does nothing unless the environment asks for a fault."""

    def __init__(self, rank: int) -> None:
        asked = parse_faults(os.environ.get(VARIABLE, "")) if restart_count() == 0 else []
        self._faults = [fault for fault in asked if fault.rank in (None, rank)]
        self.step = 0  # optimizer step under way
        self.first_parameter: Callable[[], torch.Tensor] | None = None  # this rank's part of it; set once there is one

    def __call__(self, phase: str) -> None:
        """Strike where a fault names this phase and the present step."""
        for fault in self._faults:
            if fault.phase == phase and fault.step in (None, self.step):
                self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        if fault.kind == "sleep":
            time.sleep(fault.seconds)
        elif fault.kind == "hang":
            time.sleep(1e6)
        elif fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_AT_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        elif fault.kind == "nan":
            self._poison()
        elif fault.kind == "oom":
            import torch

            raise torch.OutOfMemoryError(f"CUDA out of memory (injected in {fault.phase}). Tried to allocate 2.00 GiB.")
        else:
            raise InjectedFault(f"injected in {fault.phase} of step {self.step}")

    def _poison(self) -> None:
        import torch

        assert self.first_parameter is not None, "there is no model yet"
        with torch.no_grad():
            self.first_parameter().fill_(float("nan"))
