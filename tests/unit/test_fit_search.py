"""The search for what fits, on a made-up device whose memory is known, and the search space's candidates."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.errors import RequestError
from runner.fit import largest
from runner.fit.largest import find_largest, largest_true, next_guess, tolerance
from runner.fit.memory_budget import budget_of
from runner.fit.search_space import Candidate, candidates, divisors, overrides_of, rows_per_rank
from runner.fit.trial import Trial
from runner.fit.trial_log import kept_overrides


def config_of(**sections: dict[str, Any]) -> RunConfig:
    """A resolved configuration on two CPU ranks."""
    sections.setdefault("launcher", {})
    sections["launcher"] = {"device": "cpu", "num_processes": 2, "omp_num_threads": 1, **sections["launcher"]}
    return RunConfig.model_validate(sections)


class Device:
    """Stands for the trial_runner: a rank needs 100 bytes and 7 a row."""

    def __init__(self, budget: int) -> None:
        self.budget = SimpleNamespace(bytes=budget)
        self.tried: list[int] = []

    def trial(self, candidate: str, composed: Any, rows: int, accumulation: int, predicted: int | None) -> Trial:
        self.tried.append(rows)
        needed = 100 + 7 * rows
        fits = needed <= self.budget.bytes
        return Trial(
            candidate,
            "DDP",
            rows,
            accumulation,
            False,
            predicted,
            min(needed, self.budget.bytes + 1),
            1.0 if fits else None,
            "ran" if fits else "over budget",
            "",
            None,
        )


class Wrong:
    """A prediction with a wrong slope, which a trial puts right at one point only."""

    slope = 3.0

    def __init__(self) -> None:
        self.error = 0.0

    def bytes(self, _config: RunConfig, rows: int) -> int | None:
        return int(50 + self.slope * rows + self.error)

    def learn(self, _config: RunConfig, rows: int, measured: int, _tokens: int | None) -> None:
        self.error = measured - (50 + self.slope * rows)


@pytest.mark.parametrize("slope", [0.5, 3.0, 7.0, 40.0])
@pytest.mark.parametrize("budget", [106, 107, 121, 800, 7_107])
def test_search_ends_where_one_tenth_more_fails(monkeypatch: pytest.MonkeyPatch, slope: float, budget: int) -> None:
    """Whatever the prediction's error: the result runs, the result + max(1, 10 %) does not."""
    monkeypatch.setattr(Wrong, "slope", slope)
    monkeypatch.setattr(largest, "Prediction", Wrong)
    device = Device(budget)
    found = find_largest(None, config_of(), device)  # type: ignore[arg-type]
    assert 100 + 7 * found.rows <= budget or found.rows == 0
    assert 100 + 7 * (found.rows + tolerance(found.rows)) > budget
    failed = [rows for rows in device.tried if 100 + 7 * rows > budget]
    assert min(failed) <= found.rows + tolerance(found.rows)  # it was tried, not only predicted
    assert len(device.tried) <= 16
    assert len(set(device.tried)) == len(device.tried)


def test_search_ends_at_the_rows_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 rows on 2 ranks: no micro batch beyond 20 means anything."""
    monkeypatch.setattr(largest, "Prediction", Wrong)
    found = find_largest(None, config_of(dataset={"rows": {"train": 40}}), Device(10**9))  # type: ignore[arg-type]
    assert (found.rows, found.limit) == (20, "the training split has no more than 20 rows a rank")


def test_search_ends_at_the_blocks_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 raw rows become 547 blocks, 273 on each of 2 ranks, which is known only from the first trial on."""

    class Blocks(Device):
        def trial(self, *arguments: Any) -> Trial:
            return replace(super().trial(*arguments), train_rows=547)

    monkeypatch.setattr(largest, "Prediction", Wrong)
    device = Blocks(10**9)
    found = find_largest(None, config_of(dataset={"rows": {"train": 3000}}), device)  # type: ignore[arg-type]
    assert (found.rows, found.limit) == (273, "the training split has no more than 273 rows a rank")
    assert [trial.micro_batch_size for trial in found.trials] == [273]
    assert device.tried[0] > 273


def test_next_guess_confirms_a_bound_the_prediction_points_at() -> None:
    """Between 100 (runs) and 400 (does not), with word that nothing beyond 100 fits: 110 would end the search."""
    assert next_guess(100, 400, 1000, 100) == 110
    assert next_guess(0, 64, 1000, 50) == 32
    assert next_guess(100, 1001, 1000, 5000) == 1000
    assert next_guess(100, 104, 1000, 103) == 103


def test_largest_true() -> None:
    assert largest_true(lambda rows: rows <= 37, 1, 1000) == 37
    assert largest_true(lambda rows: False, 3, 1000) == 3
    assert largest_true(lambda rows: True, 1, 1000) == 1000


def test_candidates_keep_their_order() -> None:
    """Smaller micro batch, gradient checkpointing, higher stages, optimizer offload, parameter offload."""
    names = [candidate.name for candidate in candidates(config_of(zero={"stage": 2}))]
    assert names == [
        "as configured",
        "gradient checkpointing",
        "ZeRO-3",
        "ZeRO-3 + gradient checkpointing",
        "ZeRO-2 + CPU optimizer offload",
        "ZeRO-2 + CPU optimizer offload + gradient checkpointing",
        "ZeRO-3 + CPU optimizer offload",
        "ZeRO-3 + CPU optimizer offload + gradient checkpointing",
        "ZeRO-3 + CPU offload",
        "ZeRO-3 + CPU offload + gradient checkpointing",
    ]
    assert divisors(12) == [12, 6, 4, 3, 2, 1]


def test_candidates_of_a_single_device_begins_with_offload() -> None:
    """Nothing to share with other ranks: partitioning alone saves nothing there."""
    config = config_of(
        launcher={"name": "ddp", "num_processes": 1}, zero={"stage": 0}, train={"gradient_checkpointing": True}
    )
    assert [candidate.name for candidate in candidates(config)] == [
        "as configured",
        "ZeRO-2 + CPU optimizer offload",
        "ZeRO-3 + CPU optimizer offload",
        "ZeRO-3 + CPU offload",
    ]


def test_overrides_of_a_rung() -> None:
    config = config_of(launcher={"name": "ddp"}, zero={"stage": 0})
    *_, parameters_too = engine_of(config).savings(config, several_ranks=True)
    candidate = Candidate("x", parameters_too, gradient_checkpointing=True)
    chosen = ["launcher=deepspeed", "zero_stage=3", "offload=cpu", "train.gradient_checkpointing=true"]
    assert overrides_of(candidate, config, 4, 8) == [
        *chosen,
        "train.micro_batch_size=4",
        "train.gradient_accumulation_steps=8",
    ]
    assert (candidate.apply(config).launcher.name, candidate.apply(config).offload.params, config.launcher.name) == (
        "deepspeed",
        "cpu",
        "ddp",
    )


def test_what_was_typed_stays_unless_the_result_replaces_it() -> None:
    typed = ["launcher=ddp", "model=deberta_tiny", "fit.memory_budget=1GiB", "train.global_batch_size=64"]
    assert kept_overrides(typed, {"launcher"}) == ["model=deberta_tiny"]


def test_target_that_the_ranks_cannot_share() -> None:
    assert rows_per_rank(config_of(), 64) == 32
    with pytest.raises(RequestError, match=r"use fit\.target_global_batch=6 or 8"):
        rows_per_rank(config_of(), 7)


def test_budget() -> None:
    assert budget_of(config_of(fit={"memory_budget": "512MiB"})).bytes == 536_870_912
    for wrong, why in (("lots", "is no amount of memory"), ("900TiB", "90% of this machine's memory")):
        with pytest.raises(RequestError, match=why):
            budget_of(config_of(fit={"memory_budget": wrong}))
