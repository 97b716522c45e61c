"""The phase clock on a clock of our own: every second in exactly one phase."""

from __future__ import annotations

import pytest

from runner.train.timing import EpochTimes, PhaseClock, StepTime


class Hand:
    """A clock that is moved by hand, and counts how often the device was waited for."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits = 0

    def now(self) -> float:
        return self.seconds

    def wait(self) -> None:
        self.waits += 1


def test_nested_phases_are_charged_to_themselves_only():
    hand = Hand()
    clock = PhaseClock(hand.wait, hand.now)
    with clock.phase("forward"):
        hand.seconds += 1
        with clock.phase("data_wait"):
            hand.seconds += 10
        hand.seconds += 2
    hand.seconds += 100
    with clock.phase("forward"):
        hand.seconds += 4
    assert clock.seconds == {"forward": 7.0, "data_wait": 10.0}
    phases = clock.phases(wall_seconds=120.0)
    assert phases["other"] == 103.0
    assert sum(phases.values()) == 120.0


def test_the_device_is_waited_for_at_borders_and_nowhere_else():
    hand = Hand()
    clock = PhaseClock(hand.wait, hand.now)
    with clock.phase("forward"):
        pass
    assert hand.waits == 2


def test_rates_count_volume_and_percentiles_leave_warm_up_out():
    times = EpochTimes(warmup_steps=2)
    for seconds in (100.0, 50.0, 1.0, 2.0, 3.0):
        times.step(StepTime(seconds), samples=16, tokens=200)
    summary = times.summary(train_seconds=10.0)
    assert summary["train_samples_per_second"] == 8.0  # 5 steps × 16 rows / 10 s
    assert summary["train_tokens_per_second"] == 100.0
    assert summary["step_seconds_p50"] == 2.0
    assert summary["step_seconds_p95"] == pytest.approx(2.9)
    times.start_epoch()
    times.step(StepTime(7.0), 1, 1)
    assert times.summary(1.0)["step_seconds_p50"] == 7.0  # warm-up was used up in the first epoch
