"""The largest micro batch that runs: guess, try, narrow down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from runner.compose import Composed
from runner.config import plan
from runner.config.schema import RunConfig
from runner.fit.memory_budget import Prediction
from runner.fit.trial import NO_FIT, Trial, TrialRunner


@dataclass(frozen=True)
class Largest:
    """The result: rows (0: not even one), why not more, and every trial."""

    rows: int
    limit: str
    trials: list[Trial]
    error: str = ""


def tolerance(rows: int) -> int:
    """How close the search comes: the result runs, the result + max(1, 10 %) does not."""
    return max(1, rows // 10)


def find_largest(
    composed: Composed, config: RunConfig, trial_runner: TrialRunner, candidate: str = "as configured"
) -> Largest:
    """Search the largest micro batch of a configuration.

    Args:
        composed: as composed, with `auto` values.
        config: the same, resolved and checked: rows of the data are known from it.
    """
    prediction, accumulation = Prediction(), config.train.gradient_accumulation_steps
    cap, said = _most_rows(config)
    trials: list[Trial] = []

    def attempt(rows: int) -> Trial:
        predicted = prediction.bytes(config, rows)
        trial = trial_runner.trial(candidate, composed, rows, accumulation, predicted)
        # A recipe that cuts blocks knows how many there are only when the data is prepared; no batch had more rows than
        # that.
        held = min(rows, max(1, trial.train_rows // plan.data_parallel_size(config))) if trial.train_rows else rows
        trial = replace(trial, micro_batch_size=held)
        if trial.ran and trial.measured_bytes:
            prediction.learn(config, held, trial.measured_bytes, trial.longest_row_tokens)
        trials.append(trial)
        return trial

    low, high, guess = 0, cap + 1, _predicted_rows(config, prediction, trial_runner.budget.bytes, 0, cap)
    while high - low > 1 and (high > cap or high - low > tolerance(low)):
        trial = attempt(guess)
        if not trial.ran and trial.status not in NO_FIT:
            return Largest(low, "", trials, trial.reason)
        if trial.micro_batch_size < guess:
            cap, said = trial.micro_batch_size, _rows_there_are(trial.micro_batch_size)
            high = min(high, cap + 1)
        low, high = (trial.micro_batch_size, high) if trial.ran else (low, trial.micro_batch_size)
        if low < high - 1:
            guess = next_guess(
                low, high, cap, _predicted_rows(config, prediction, trial_runner.budget.bytes, low, high - 1)
            )
    return Largest(low, said if low == cap else f"{high} rows: {trials_at(trials, high).reason}", trials)


def trials_at(trials: list[Trial], rows: int) -> Trial:
    """The trial at a number of rows."""
    return next(trial for trial in trials if trial.micro_batch_size == rows)


def next_guess(low: int, high: int, cap: int, predicted: int) -> int:
    """The next number of rows to try, between `low` (runs; 0: nothing yet) and `high` (does not; cap + 1: not tried).

    The prediction is followed where it says something new; where it points at a bound that is known already,
    the nearest informative number is tried: the one that would end the search, or the middle.
    """
    if high > cap:  # nothing has failed yet
        return min(cap, max(predicted, low + tolerance(low)))
    middle = (low + high) // 2
    if low == 0:
        return max(1, min(predicted, middle))
    if predicted <= low:
        return min(middle, low + tolerance(low))
    return max(low + 1, min(predicted, high - max(1, (high - low) // 4)))


def _most_rows(config: RunConfig) -> tuple[int, str]:
    """No micro batch is larger than this, and why."""
    rows, most = config.dataset.rows.get("train"), config.fit.max_micro_batch_size
    if rows and config.dataset.max_train_rows:
        rows = min(rows, config.dataset.max_train_rows)
    per_rank = max(1, rows // plan.data_parallel_size(config)) if rows else most
    if per_rank < most:
        return per_rank, _rows_there_are(per_rank)
    return most, f"fit.max_micro_batch_size={most}"


def _rows_there_are(rows: int) -> str:
    return f"the training split has no more than {rows} rows a rank"


def _predicted_rows(config: RunConfig, prediction: Prediction, budget: int, low: int, high: int) -> int:
    """Largest number of rows in [max(1, low), high] that is predicted to fit; the lower end when none is."""

    def fits(rows: int) -> bool:
        needed = prediction.bytes(config, rows)
        if needed is None:  # a model that cannot be estimated: from the configured size on by doubling
            return rows <= max(config.train.micro_batch_size, 2 * low)
        return needed <= budget

    return largest_true(fits, max(1, low), high)


def largest_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number in [low, high] for which a condition holds that ends somewhere and does not come back; `low`
    when none does.
    """
    reach = 1
    while low + reach <= high and holds(low + reach):
        low, reach = low + reach, reach * 2
    high = min(high, low + reach - 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
