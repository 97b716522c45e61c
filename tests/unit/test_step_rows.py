"""Which rows an optimizer step holds: the same however it is accumulated; the longest first in trials."""

from __future__ import annotations

import numpy as np

from runner.train.batching import epoch_order

LENGTHS = np.random.default_rng(0).integers(4, 60, 1000).astype(np.int32)


def test_every_row_once_and_only_the_last_step_is_smaller() -> None:
    steps = epoch_order(LENGTHS, 42, 0, 64, "similar_length")
    assert [len(step) for step in steps] == [64] * 15 + [40]
    assert sorted(np.concatenate(steps).tolist()) == list(range(1000))


def test_longest_first_is_sorted_and_knows_no_seed() -> None:
    steps = epoch_order(LENGTHS, 42, 0, 64, "longest_first")
    lengths = LENGTHS[np.concatenate(steps)]
    assert (np.diff(lengths) <= 0).all()
    assert all((a == b).all() for a, b in zip(steps, epoch_order(LENGTHS, 7, 3, 64, "longest_first"), strict=True))
