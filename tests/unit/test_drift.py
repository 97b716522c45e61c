"""A machine that changed is not a method: planted drift takes the verdict away, a true difference keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_records import points, repeat, write_run

from runner.report.columns import speed_up_text
from runner.report.drift import t_two_sided
from runner.report.html import headline
from runner.report.intervals import t_quantile
from runner.report.records import read_run
from runner.report.tables import Table, compare

METHODS = ("DDP", "ZeRO-2", "ZeRO-3 + CPU offload")
# Relative deviations of nine runs, drawn once by hand; their standard deviation is 3.0 %.
NOISE = (0.021, -0.034, 0.012, -0.018, 0.041, -0.027, 0.005, 0.033, -0.031)


def _table(folder: Path, seconds: Any, in_turns: bool = True) -> Table:
    """Three methods with three repeats each, a quarter of an hour apart; `seconds(place, method)` of each run."""
    order = [(index, method) for index in range(3) for method in METHODS]
    if not in_turns:
        order.sort(key=lambda pair: METHODS.index(pair[1]))
    runs = []
    for place, (index, method) in enumerate(order):
        started = f"2026-03-01T{10 + place // 4:02}:{15 * (place % 4):02}:00Z"
        changes = {"started_at": started, "config": {"offload": {"optimizer": "none", "params": "none"}}}
        content = repeat(method, index, seconds(place, method), **changes)
        runs.append(read_run(write_run(folder / str(place), content, points())))
    (table,) = compare(runs).tables
    return table


@pytest.mark.parametrize("in_turns", [True, False])
@pytest.mark.parametrize("shape", ["half of the runs", "a slope"])
def test_planted_drift_takes_the_verdict_away(tmp_path: Path, shape: str, in_turns: bool) -> None:
    """Later runs are slower by half, all methods alike."""

    def seconds(place: int, _method: str) -> float:
        drift = 1 + 0.5 * place / 8 if shape == "a slope" else 1.5 if place >= 4 else 1.0
        return 10 * (1 + NOISE[place]) * drift

    table = _table(tmp_path, seconds, in_turns)
    texts = [speed_up_text(row) for row in table.rows]
    assert not [text for text in texts if "×" in text], texts
    (sentence,) = headline(table)
    assert "as fast as" not in sentence


def test_drift_in_turns_is_named(tmp_path: Path) -> None:
    table = _table(tmp_path, lambda place, _: 10 * (1 + NOISE[place]) * (1.5 if place >= 4 else 1.0))
    assert table.drift.startswith("The machine changed while these runs were made: repeats of the same cell took ")
    assert headline(table) == [table.drift]
    assert [speed_up_text(row) for row in table.rows] == ["baseline", "drift", "drift"]


@pytest.mark.parametrize("in_turns", [True, False])
def test_a_true_difference_with_the_same_noise_keeps_its_verdict(tmp_path: Path, in_turns: bool) -> None:
    factor = {"DDP": 1.5, "ZeRO-2": 1.0, "ZeRO-3 + CPU offload": 1.45}
    table = _table(tmp_path, lambda place, method: 10 * (1 + NOISE[place]) * factor[method], in_turns)
    assert table.drift == ""
    (sentence,) = headline(table)
    assert sentence.startswith(("ZeRO-2 trains 1.4", "ZeRO-2 trains 1.5"))
    assert "as fast as DDP at global batch 16" in sentence


def test_without_start_times_nothing_is_said_of_drift(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / f"{method}{index}", repeat(method, index, 10 + index), points()))
        for method in METHODS[:2]
        for index in range(3)
    ]
    assert compare(runs).tables[0].drift == ""


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 12, 29, 30])
def test_the_tail_of_students_t_agrees_with_its_quantiles(freedom: int) -> None:
    assert t_two_sided(t_quantile(freedom), freedom) == pytest.approx(0.05, abs=1e-5)


def test_no_speed_up_is_headlined_between_learning_rates(tmp_path: Path) -> None:
    """Each learning rate has its own baseline; a method that ran with another one only has none."""
    runs = []
    for lr, seconds in ((1e-4, {"DDP": 10.0, "ZeRO-2": 9.0}), (1e-3, {"DDP": 3.0}), (1e-2, {"ZeRO-2": 1.0})):
        for method, value in seconds.items():
            for index in range(3):
                content = repeat(method, index, value + 0.01 * index, config={"optimizer": {"lr": lr}})
                runs.append(read_run(write_run(tmp_path / f"{lr}{method}{index}", content, points())))
    (table,) = compare(runs).tables
    found = {row.label: speed_up_text(row) for row in table.rows}
    assert found["DDP, lr=0.0001"] == "baseline"
    assert found["ZeRO-2, lr=0.0001"].startswith("1.11×")
    assert found["DDP, lr=0.001"] == found["ZeRO-2, lr=0.01"] == "–"
    assert headline(table)[0].startswith("ZeRO-2, lr=0.0001 trains 1.11×")
    assert list(found) == ["DDP, lr=0.0001", "DDP, lr=0.001", "ZeRO-2, lr=0.0001", "ZeRO-2, lr=0.01"]
