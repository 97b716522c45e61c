"""The search space at constant global batch: every way to save memory, predicted first, then tried; the fastest that
ran wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from runner.compose import Composed
from runner.config import plan
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.engines.base import Saving
from runner.errors import Problem, RequestError
from runner.fit.memory_budget import Prediction
from runner.fit.trial import NO_FIT, Trial, TrialRunner

HOPELESS = 1.25  # a candidate predicted to need this many times the budget at its smallest batch is not tried
TRIALS_PER_RUNG = 4


@dataclass(frozen=True)
class Candidate:
    """One configuration of the search space.

    Attributes:
        saving: the engine's way to less memory; None leaves the method as it is.
        gradient_checkpointing: None leaves it as it is.
    """

    name: str
    saving: Saving | None = None
    gradient_checkpointing: bool | None = None

    def apply(self, config: RunConfig) -> RunConfig:
        """A copy of the configuration with this candidate's settings."""
        own = config.model_copy(deep=True)
        if self.gradient_checkpointing is not None:
            own.train.gradient_checkpointing = self.gradient_checkpointing
        if self.saving is not None:
            self.saving.apply(own)
        return own


@dataclass(frozen=True)
class SearchResult:
    """The result: the fastest trial that ran with its candidate, and the whole trial log; an error that is not about
    memory.
    """

    best: Trial | None
    candidate: Candidate | None
    trials: list[Trial]
    error: str = ""


def candidates(config: RunConfig) -> Iterator[Candidate]:
    """The search space of a resolved configuration, from what costs least time to what costs most."""
    yield Candidate("as configured")
    if not config.train.gradient_checkpointing:
        yield Candidate("gradient checkpointing", gradient_checkpointing=True)
    for saving in engine_of(config).savings(config, several_ranks=plan.world_size(config) > 1):
        plain = config.model_copy(deep=True)
        saving.apply(plain)
        yield from _with_and_without_checkpointing(config, Candidate(plan.method(plain), saving))


def _with_and_without_checkpointing(config: RunConfig, candidate: Candidate) -> Iterator[Candidate]:
    yield candidate
    if not config.train.gradient_checkpointing:
        yield replace(candidate, name=f"{candidate.name} + gradient checkpointing", gradient_checkpointing=True)


def rows_per_rank(config: RunConfig, global_batch: int) -> int:
    """Rows of each rank in one optimizer step. Raises RequestError when the ranks cannot share the batch evenly."""
    ranks = plan.data_parallel_size(config)
    if global_batch % ranks:
        lower = max(1, global_batch // ranks) * ranks
        raise RequestError(
            Problem(
                "fit.target_global_batch",
                global_batch,
                f"cannot be shared evenly by {ranks} ranks",
                f"use fit.target_global_batch={lower} or {lower + ranks}",
            )
        )
    return global_batch // ranks


def divisors(number: int) -> list[int]:
    """All divisors, the largest first."""
    return [size for size in range(number, 0, -1) if number % size == 0]


def search(composed: Composed, config: RunConfig, trial_runner: TrialRunner, global_batch: int) -> SearchResult:
    """Try every candidate at its largest micro batch that fits; accumulation keeps the global batch.

    Args:
        composed: as composed, with `auto` values.
        config: the same, resolved.
    """
    sizes = [size for size in divisors(rows_per_rank(config, global_batch)) if size <= config.fit.max_micro_batch_size]
    prediction, trial_log = Prediction(), list[Trial]()
    best: Trial | None = None
    chosen: Candidate | None = None
    for candidate in candidates(config):
        skipped = _not_worth_a_trial(candidate, config, prediction, sizes, trial_runner, bool(trial_log))
        if skipped is not None:
            trial_log.append(skipped)
            continue
        tried = _try_rung(candidate, composed, config, trial_runner, prediction, sizes)
        trial_log += tried
        if tried[-1].status not in (*NO_FIT, "ran") and candidate.name == "as configured":
            return SearchResult(None, None, trial_log, tried[-1].reason)
        for trial in tried:
            if trial.ran and (best is None or (trial.samples_per_second or 0) > (best.samples_per_second or 0)):
                best, chosen = trial, candidate
    return SearchResult(best, chosen, trial_log)


def _not_worth_a_trial(
    candidate: Candidate,
    config: RunConfig,
    prediction: Prediction,
    sizes: list[int],
    trial_runner: TrialRunner,
    known: bool,
) -> Trial | None:
    """A trial-log line for a candidate that needs no trial, or None.

    Before the first trial predictions are too rough to skip by.
    """
    own = candidate.apply(config)
    smallest = prediction.bytes(own, sizes[-1])
    if candidate.saving is not None and candidate.saving.to_host and config.launcher.device == "cpu":
        return _untried(
            candidate,
            own,
            sizes[-1],
            sizes[0],
            smallest,
            "on a CPU the host's memory is the device's: offload frees nothing",
        )
    if known and smallest is not None and smallest > HOPELESS * trial_runner.budget.bytes:
        return _untried(
            candidate, own, sizes[-1], sizes[0], smallest, "predicted not to fit, even at its smallest micro batch"
        )
    return None


def _untried(
    candidate: Candidate, own: RunConfig, size: int, per_rank: int, predicted: int | None, reason: str
) -> Trial:
    return Trial(
        candidate.name,
        plan.method(own),
        size,
        per_rank // size,
        own.train.gradient_checkpointing,
        predicted,
        None,
        None,
        "not tried",
        reason,
        None,
    )


def _try_rung(
    candidate: Candidate,
    composed: Composed,
    config: RunConfig,
    trial_runner: TrialRunner,
    prediction: Prediction,
    sizes: list[int],
) -> list[Trial]:
    """Trials of one candidate: from the largest size predicted to fit, up while it fits, down while it does not."""
    own, own_composed = candidate.apply(config), replace(composed, config=candidate.apply(composed.config))
    per_rank, tried = sizes[0], dict[int, Trial]()
    size = _largest_predicted(own, prediction, sizes, trial_runner.budget.bytes)
    while size not in tried and len(tried) < TRIALS_PER_RUNG:
        trial = trial_runner.trial(candidate.name, own_composed, size, per_rank // size, prediction.bytes(own, size))
        tried[size] = trial
        if trial.ran and trial.measured_bytes:
            prediction.learn(own, size, trial.measured_bytes, trial.longest_row_tokens)
        elif trial.status not in NO_FIT:
            break
        failed = [known for known, result in tried.items() if not result.ran]
        open_sizes = [known for known in sizes if known < min(failed, default=sizes[0] + 1)]
        if not open_sizes:
            break
        guess = _largest_predicted(own, prediction, open_sizes, trial_runner.budget.bytes)
        ran = [known for known, result in tried.items() if result.ran]
        size = max(guess, max(ran, default=0)) if ran else min(guess, open_sizes[0])
    return list(tried.values())


def _largest_predicted(config: RunConfig, prediction: Prediction, sizes: list[int], budget: int) -> int:
    """The largest size predicted to fit; the smallest when none is."""
    for size in sizes:
        needed = prediction.bytes(config, size)
        if needed is None or needed <= budget:
            return size
    return sizes[-1]


def overrides_of(candidate: Candidate, config: RunConfig, micro_batch_size: int, accumulation: int) -> list[str]:
    """What to type to get a candidate's configuration at a batch."""
    own = candidate.apply(config)
    changed: list[str] = []
    if candidate.saving is not None:
        changed += candidate.saving.overrides
    if own.train.gradient_checkpointing != config.train.gradient_checkpointing:
        changed.append("train.gradient_checkpointing=true")
    return [*changed, f"train.micro_batch_size={micro_batch_size}", f"train.gradient_accumulation_steps={accumulation}"]
