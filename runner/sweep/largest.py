"""A cell at its largest micro batch: searched by `fit`, then run like any other cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from runner.compose import Composed
from runner.config.schema import RunConfig
from runner.errors import RequestError
from runner.fit.largest import find_largest
from runner.fit.memory_budget import budget_of
from runner.fit.trial import TrialRunner
from runner.fit.trial_log import write_trial_log
from runner.launch.host_pool import SharedHosts
from runner.launch.process_signals import Stopping
from runner.memory.amounts import mib
from runner.preflight.check import check
from runner.sweep.jobs import Job


class NothingFits(Exception):
    """Not one row fits, or the search failed for another reason, which the text says."""


def set_largest(
    job: Job, known: dict[int, dict[str, Any]], hosts: SharedHosts, stop: Stopping, console: Console
) -> dict[str, Any]:
    """Set the job's micro batch to the largest that runs, without accumulation.

    Args:
        known: what was found for other repeats, by cell; added to.

    Returns:
        The record's `fit`: largest_micro_batch, budget_bytes, limit, ledger.

    Raises:
        NothingFits, RequestError: the cell cannot be run.
        FitStopped: after a signal.
    """
    assert job.checked is not None
    assert job.cell.composed is not None
    composed = replace(job.cell.composed, config=_at(job, job.cell.composed, 1))
    if job.cell.job not in known:
        known[job.cell.job] = _search(job, composed, hosts, stop, console)
    found = known[job.cell.job]
    config = _at(job, composed, found["largest_micro_batch"])
    job.checked = check(replace(composed, config=config, run_dir=job.run_dir))
    return found


def _at(job: Job, composed: Composed, rows: int) -> RunConfig:
    """The cell's configuration with this repeat's seed and a micro batch, without accumulation."""
    assert job.checked is not None
    config = composed.config.model_copy(deep=True)
    config.train.seed = job.checked.config.train.seed
    config.train.micro_batch_size, config.train.gradient_accumulation_steps, config.train.global_batch_size = (
        rows,
        1,
        None,
    )
    return config


def _search(job: Job, composed: Composed, hosts: SharedHosts, stop: Stopping, console: Console) -> dict[str, Any]:
    assert job.checked is not None
    folder = job.run_dir.with_name(f"{job.run_dir.name}-fit")
    number = 2
    while folder.exists():  # an earlier search that was cut short
        folder, number = job.run_dir.with_name(f"{job.run_dir.name}-fit-{number}"), number + 1
    budget = budget_of(job.checked.config)
    config = job.checked.config.model_copy(deep=True)
    config.train.gradient_accumulation_steps = 1
    console.print(f"  searching the largest micro batch within {mib(budget.bytes)} a rank", highlight=False)
    largest = find_largest(composed, config, TrialRunner(folder, budget, hosts, stop, console), job.label)
    result = {"largest_micro_batch": largest.rows, "limit": largest.limit}
    ledger = write_trial_log(folder, budget, largest.trials, result)
    if largest.error or not largest.rows:
        raise NothingFits(largest.error or f"not one row fits: {largest.limit}")
    return {**result, "budget_bytes": budget.bytes, "ledger": str(ledger)}


def refusal(error: RequestError) -> str:
    """The errors of a refused configuration in one line."""
    return "; ".join(
        problem.line().removeprefix("error: ") for problem in error.problems if problem.severity == "error"
    )
