"""`python -m runner fit [overrides]`: what really fits, found by prediction and trials."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from runner.cli.request import composed_request
from runner.compose import Composed
from runner.config.clusters import one_run_only
from runner.engines import engine_of
from runner.errors import EXIT_COMPLETED, EXIT_FAILED, EXIT_OUT_OF_MEMORY, Problem, RequestError
from runner.fit.largest import find_largest
from runner.fit.memory_budget import MemoryBudget, budget_of
from runner.fit.search_space import Candidate, overrides_of, search
from runner.fit.trial import FitStopped, Trial, TrialRunner
from runner.fit.trial_log import default_name, kept_overrides, print_trial_log, save_choice, write_trial_log
from runner.launch.host_pool import SharedHosts
from runner.launch.process_signals import stopping
from runner.launch.watch import console as terminal
from runner.memory.amounts import mib
from runner.preflight.check import Checked, check

USAGE = """usage: python -m runner fit [KEY=VALUE | GROUP=OPTION ...]

Find the largest micro batch that really runs, by prediction and trials; with fit.target_global_batch=N the fastest
configuration at that global batch. `python -m runner keys fit.` lists its own keys; see docs/fit.md."""


def main(arguments: Sequence[str]) -> int:
    """Compose, check, search, print; returns the exit status."""
    composed, console = composed_request(arguments), terminal()
    _stop_on_fixed(composed)
    elsewhere = one_run_only(composed.config, "fit tries what fits on this machine")
    if elsewhere:
        raise RequestError(elsewhere)
    checked = check(composed)
    budget = budget_of(checked.config)
    hosts = SharedHosts()
    with stopping() as stop:
        trial_runner = TrialRunner(composed.run_dir, budget, hosts, stop, console)
        try:
            return _search(composed, checked, trial_runner)
        except FitStopped:
            console.print("stopped by a signal: nothing was decided", highlight=False)
            return stop.exit_status
        finally:
            hosts.close()


def _stop_on_fixed(composed: Composed) -> None:
    """What a DeepSpeed JSON of the user's fixes cannot be searched for."""
    config = composed.config
    problems = engine_of(config).fixed_batch(config, with_accumulation=False)
    if config.fit.target_global_batch and engine_of(config).fixed_method(config):
        why = "the search space changes stage, offload and batch, which this file fixes"
        problems = [
            Problem(
                "launcher.config_file",
                config.launcher.config_file,
                why,
                "leave launcher.config_file or fit.target_global_batch out",
            )
        ]
    if problems:
        raise RequestError(problems)


def _search(composed: Composed, checked: Checked, trial_runner: TrialRunner) -> int:
    """The largest micro batch, or with a target the search space."""
    config, console = checked.config, trial_runner.console
    target = config.fit.target_global_batch
    if target is None:
        largest = find_largest(composed, config, trial_runner)
        best = next((trial for trial in largest.trials if trial.ran and trial.micro_batch_size == largest.rows), None)
        return _conclude(
            composed,
            checked,
            trial_runner,
            largest.trials,
            best,
            Candidate("as configured"),
            largest.error,
            f"limit      {largest.limit}",
        )
    found = search(composed, config, trial_runner, target)
    console.print(
        f"search     global batch {target}, {len({trial.candidate for trial in found.trials})} candidates",
        highlight=False,
    )
    return _conclude(composed, checked, trial_runner, found.trials, found.best, found.candidate, found.error, "")


def _conclude(
    composed: Composed,
    checked: Checked,
    trial_runner: TrialRunner,
    trials: list[Trial],
    best: Trial | None,
    candidate: Candidate | None,
    error: str,
    limit: str,
) -> int:
    console, budget = trial_runner.console, trial_runner.budget
    print_trial_log(trials, budget, console)
    if best is None or candidate is None:
        write_trial_log(trial_runner.folder, budget, trials, None)
        console.print(
            f"failed: {error}" if error else "nothing fits: see the trial log for what each candidate needed",
            highlight=False,
            markup=False,
        )
        console.print(f"trials     {trial_runner.folder}", highlight=False)
        return EXIT_FAILED if error else EXIT_OUT_OF_MEMORY
    _tell(composed, checked, trial_runner, trials, best, candidate, limit)
    return EXIT_COMPLETED


def _tell(
    composed: Composed,
    checked: Checked,
    trial_runner: TrialRunner,
    trials: list[Trial],
    best: Trial,
    candidate: Candidate,
    limit: str,
) -> None:
    """Result, overrides to paste, YAML, trial log."""
    config, console = candidate.apply(checked.config), trial_runner.console
    config.train.micro_batch_size, config.train.gradient_accumulation_steps = (
        best.micro_batch_size,
        best.gradient_accumulation_steps,
    )
    config.train.global_batch_size = None
    overrides = overrides_of(candidate, checked.config, best.micro_batch_size, best.gradient_accumulation_steps)
    name = config.fit.name or default_name(config)
    kept = kept_overrides(composed.overrides, {text.partition("=")[0] for text in overrides})
    path = save_choice(
        config,
        name,
        kept_overrides(kept, {"launcher", "zero_stage", "offload", "train.gradient_checkpointing"}),
        _comment(composed, best, trial_runner.budget),
    )
    result: dict[str, Any] = {**best.as_dict(), "overrides": overrides, "saved": str(path), "fitted": name}
    trial_log = write_trial_log(trial_runner.folder, trial_runner.budget, trials, result)
    speed = f", {best.samples_per_second:.1f} samples/s on the longest rows" if best.samples_per_second else ""
    console.print(
        f"fits       {best.method}, micro batch {best.micro_batch_size} × {best.gradient_accumulation_steps} "
        f"accumulated{speed}",
        highlight=False,
        markup=False,
    )
    for line in (
        limit,
        f"use        python -m runner {shlex.join([*kept, *overrides])}",
        f"or         +fitted={name}   ({path})",
        f"trial log  {trial_log}",
    ):
        if line:
            console.print(line, highlight=False, markup=False)


def _comment(composed: Composed, best: Trial, budget: MemoryBudget) -> str:
    used = f"{(best.measured_bytes or 0) / 2**20:.0f} of {mib(budget.bytes)} a rank"
    command = f"Found by `python -m runner fit {' '.join(composed.overrides)}`:"
    return (
        f"{command}\n{used} ({budget.source.rstrip(',')}), a few optimizer steps on the longest rows and the "
        "longest evaluation batch."
    )
