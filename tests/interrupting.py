"""Runs that are interrupted on purpose: started as a user starts them, signalled, and looked for afterwards."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import ROOT, SMALL, Result, cli_environment

# 14 optimizer steps over two epochs; dropout makes the generators' states matter; every step is logged.
SHORT = (
    *SMALL,
    "train.epochs=2",
    "train.log_every=1",
    "model.config.hidden_dropout_prob=0.1",
    "model.config.attention_probs_dropout_prob=0.1",
)
LAUNCHERS = {
    "ddp": ("launcher=ddp",),
    **{f"zero{stage}": ("launcher=deepspeed", f"zero_stage={stage}") for stage in range(3)},
    # Tiny tensors stay whole on every rank unless the threshold says otherwise.
    "zero3": ("launcher=deepspeed", "zero_stage=3", "zero.stage3_param_persistence_threshold=0"),
    "zero3_offload": (
        "launcher=deepspeed",
        "zero_stage=3",
        "zero.stage3_param_persistence_threshold=0",
        "offload=cpu",
        "offload.force_cpu_adam=false",
    ),
}


def _as_from_a_terminal() -> None:
    """Where the tests themselves run under nohup, a run would ignore SIGHUP, as it should."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Started:
    """A run in the background."""

    def __init__(self, *arguments: str, run_dir: Path, env: dict[str, str | None] | None = None) -> None:
        self.run_dir = run_dir
        where = [] if arguments[:1] == ("resume",) else [f'hydra.run.dir="{run_dir}"']
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runner", *arguments, *where],
            cwd=ROOT,
            env=cli_environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_as_from_a_terminal,
        )
        self.family: list[psutil.Process] = []

    def wait_until(self, condition: Callable[[], bool], seconds: float = 120) -> bool:
        """Poll until the condition holds; False when the run has ended before."""
        until = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < until, "the run did not come that far"
            time.sleep(0.02)
        return True

    def wait_for_step(self, step: int) -> bool:
        """Wait until a step is in metrics.jsonl."""
        return self.wait_until(lambda: any(line["step"] >= step for line in logged(self.run_dir)))

    def processes(self) -> list[psutil.Process]:
        """The runner and everything under it."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def rank(self, number: int) -> psutil.Process:
        """A rank's process."""
        return psutil.Process(json.loads((self.run_dir / "heartbeat" / f"rank_{number}.json").read_text())["pid"])

    def signal(self, number: signal.Signals, everyone: bool = False) -> float:
        """Signal the runner, or all its processes; returns when."""
        self.family = self.processes()
        for process in self.family if everyone else self.family[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):  # one that has just ended by itself
                process.send_signal(number)
        return time.monotonic()

    def end(self, timeout: float = 60) -> Result:
        """Wait for the command's end."""
        text, _ = self.process.communicate(timeout=timeout)
        return Result(self.process.returncode, text, "", self.run_dir)

    def gone_within(self, seconds: float) -> bool:
        """Whether none of the processes noted at the last signal is left."""
        _, alive = psutil.wait_procs(
            [process for process in self.family if process.pid != self.process.pid], timeout=seconds
        )
        return not [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def logged(run_dir: Path) -> list[dict[str, Any]]:
    """Whole lines of metrics.jsonl."""
    try:
        lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    except OSError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def numbers(result: Result) -> dict[str, Any]:
    """What must be bit-equal after a resume: loss, norm and rate of each step, the epochs' losses and metrics."""
    record = result.record
    return {
        "steps": [(line["step"], line["loss"], line["grad_norm"], line["learning_rate"]) for line in result.steps],
        "epochs": [(epoch["epoch"], epoch["train_loss"], epoch["metrics"]) for epoch in record["epochs"]],
        "metrics": record["metrics"],
        "best": record["best"],
        "samples": record["samples_seen"],
    }


def checkpoint_names(run_dir: Path) -> list[str]:
    """Everything in the run's checkpoints folder, hidden names too."""
    folder = run_dir / "checkpoints"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
