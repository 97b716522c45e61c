"""One trial: a few optimizer steps on the longest rows, the longest evaluation batch, in fresh processes."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from runner.compose import Composed
from runner.config.schema import CheckpointConfig, RunConfig
from runner.errors import RequestError
from runner.execution import Ended, Request, execute
from runner.fit.guard import GuardedHost
from runner.fit.memory_budget import MemoryBudget
from runner.launch.device_lock import turn
from runner.launch.host_client import Host
from runner.launch.host_pool import SharedHosts
from runner.launch.process_signals import Stopping
from runner.memory.amounts import mib
from runner.preflight.check import Checked, check
from runner.rundir.record import METRICS_FILE
from runner.rundir.trial import mark_trial

RAN = "ran"
NO_FIT = ("out of memory", "over budget", "killed", "timed out")


class FitStopped(Exception):
    """A signal asked the search to end."""


@dataclass(frozen=True)
class Trial:
    """One line of the trial log. Memory is bytes of the fullest rank.

    Attributes:
        candidate: the configuration's name on the search space.
        status: `ran`; one of NO_FIT; `failed` for anything else; `not tried`.
        samples_per_second: over all ranks, from the median optimizer step, on the longest rows.
        train_rows: rows of the prepared training split (blocks, where the recipe cuts them).
    """

    candidate: str
    method: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    gradient_checkpointing: bool
    predicted_bytes: int | None
    measured_bytes: int | None
    samples_per_second: float | None
    status: str
    reason: str
    folder: str | None
    longest_row_tokens: int | None = None
    train_rows: int | None = None

    @property
    def ran(self) -> bool:
        """Whether it went through within its memory."""
        return self.status == RAN

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


@dataclass
class TrialRunner:
    """What every trial of one search shares."""

    folder: Path
    budget: MemoryBudget
    hosts: SharedHosts
    stop: Stopping
    console: Console
    environment: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def trial(
        self, candidate: str, composed: Composed, micro_batch_size: int, accumulation: int, predicted: int | None
    ) -> Trial:
        """Try a configuration at a batch.

        Raises:
            FitStopped: after a signal.
        """
        from runner.config import plan

        self.count += 1
        own = replace(
            composed,
            config=trial_config(composed.config, micro_batch_size, accumulation),
            run_dir=self.folder / f"trial_{self.count}",
        )
        facts: dict[str, Any] = {
            "candidate": candidate,
            "method": plan.method(own.config),
            "micro_batch_size": micro_batch_size,
            "gradient_accumulation_steps": accumulation,
            "gradient_checkpointing": own.config.train.gradient_checkpointing,
            "predicted_bytes": predicted,
        }
        try:
            checked = check(own)
        except RequestError as error:
            reasons = "; ".join(problem.line() for problem in error.problems if problem.severity == "error")
            return Trial(
                **facts, measured_bytes=None, samples_per_second=None, status="failed", reason=reasons, folder=None
            )
        outcome = self._run(checked, composed.overrides, facts)
        trial = Trial(**facts, **outcome, folder=own.run_dir.name)
        self._say(trial)
        return trial

    def _say(self, trial: Trial) -> None:
        speed = f", {trial.samples_per_second:.1f} samples/s" if trial.samples_per_second else ""
        batch = f"micro batch {trial.micro_batch_size} × {trial.gradient_accumulation_steps}"
        used = f"{mib(trial.measured_bytes or 0)} of {mib(self.budget.bytes)}"
        self.console.print(
            f"  trial {self.count}: {trial.candidate}, {batch}: {trial.status}{speed}, {used}",
            highlight=False,
            markup=False,
        )

    def _run(self, checked: Checked, overrides: list[str], facts: dict[str, Any]) -> dict[str, Any]:
        on_cpu = checked.config.launcher.device == "cpu"
        with turn(checked.config, self.stop, self.console) as held:
            if not held:
                raise FitStopped
            guard = GuardedHost(
                self.hosts.of(checked.config),
                self.budget.bytes if on_cpu else None,
                checked.config.fit.trial_timeout_seconds,
            )
            request = Request(
                checked,
                overrides,
                time.monotonic(),
                {"fit": {"trial": self.count, "budget_bytes": self.budget.bytes, **facts}},
                self.environment,
            )
            mark_trial(checked.run_dir)
            ended = execute(request, cast(Host, guard), self.stop, Console(quiet=True))
        if self.stop.asked:
            raise FitStopped
        return _outcome(ended, guard, self.budget.bytes if on_cpu else None)


def trial_config(config: RunConfig, micro_batch_size: int, accumulation: int) -> RunConfig:
    """The configuration of a trial: the run's own, but short, and with nothing saved."""
    own = config.model_copy(deep=True)
    train = own.train
    train.micro_batch_size, train.gradient_accumulation_steps, train.global_batch_size = (
        micro_batch_size,
        accumulation,
        None,
    )
    train.max_steps, train.epochs = config.fit.steps, config.fit.steps
    train.save_model, train.log_every, train.warmup_steps_not_timed = False, 1, 1
    train.evaluate_every_epoch = True
    own.scheduler.warmup_steps, own.scheduler.warmup_ratio = 0, None
    own.checkpoint = CheckpointConfig.model_validate({})
    own.dataset.test = None
    own.mode = "train"
    return own


def _outcome(ended: Ended, guard: GuardedHost, limit: int | None) -> dict[str, Any]:
    record = ended.record.data
    measured = max(
        [
            guard.peak_bytes,
            *(record.get("peak_memory_bytes") or []),
            (record.get("failure") or {}).get("peak_bytes") or 0,
        ]
    )
    status, reason = _status(ended, guard, measured, limit)
    if status != "failed" and status != RAN:
        record["reason"] = reason
        record["failure"] = {**(record.get("failure") or {}), "out_of_memory": status != "timed out"}
        ended.record.write()
    train = (record.get("data") or {}).get("train") or {}
    speed = _samples_per_second(record, ended.record.path.parent) if status == RAN else None
    return {
        "measured_bytes": measured or None,
        "samples_per_second": speed,
        "status": status,
        "reason": reason,
        "longest_row_tokens": train.get("longest_row_tokens"),
        "train_rows": train.get("rows"),
    }


def _status(ended: Ended, guard: GuardedHost, measured: int, limit: int | None) -> tuple[str, str]:
    """Did it run, did it not fit, or did it fail for another reason?"""
    reason = str(ended.record.data.get("reason") or "")
    if guard.ended_by == "memory" or (ended.status == "completed" and limit is not None and measured > limit):
        return "over budget", f"a rank's resident memory reached {mib(measured)}, more than {mib(limit or 0)}"
    if guard.ended_by == "time" or "no progress for" in reason:
        return (
            "timed out",
            reason if "no progress" in reason else "the trial took longer than fit.trial_timeout_seconds",
        )
    if ended.status == "completed":
        return RAN, ""
    if ended.failure is not None and ended.failure.out_of_memory:
        return "out of memory", reason
    if "killed by SIGKILL" in reason:
        return "killed", reason
    return "failed", reason


def _samples_per_second(record: dict[str, Any], run_dir: Path) -> float | None:
    """Global batch / median seconds of an optimizer step, over steps with a whole batch; the first one only where there
    is no other.
    """
    rows, batch = record["data"]["train"]["rows"], record["global_batch_size"]
    steps_per_epoch = -(-rows // batch)
    lines = [json.loads(line) for line in (run_dir / METRICS_FILE).read_text().splitlines()]
    whole = [line["seconds"] for line in lines if ((line["step"] - 1) % steps_per_epoch + 1) * batch <= rows]
    seconds = whole[1:] or whole
    return batch / statistics.median(seconds) if seconds else None
