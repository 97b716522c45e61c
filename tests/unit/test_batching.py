"""Which rows go where: worked out by hand on small splits."""

from __future__ import annotations

import numpy as np
import pytest

from runner.train.batching import MicroBatch, deal, epoch_order, evaluation_batches, order_hash


@pytest.mark.parametrize("batching", ["random", "similar_length"])
@pytest.mark.parametrize("rows", [1, 7, 8, 100, 801])
def test_every_row_once_an_epoch(batching, rows):
    lengths = np.arange(rows) % 13 + 1
    steps = epoch_order(lengths, seed=3, epoch=0, per_step=8, batching=batching)
    assert sorted(np.concatenate(steps).tolist()) == list(range(rows))
    assert [len(step) for step in steps[:-1]] == [8] * (len(steps) - 1)
    assert len(steps) == -(-rows // 8)


def test_order_depends_on_seed_and_epoch_alone():
    lengths = np.arange(64)
    first = order_hash(epoch_order(lengths, 1, 0, 8, "similar_length"))
    assert first == order_hash(epoch_order(lengths, 1, 0, 8, "similar_length"))
    assert first != order_hash(epoch_order(lengths, 1, 1, 8, "similar_length"))
    assert first != order_hash(epoch_order(lengths, 2, 0, 8, "similar_length"))


def test_similar_lengths_share_a_step():
    """64 rows of lengths 1..64 in steps of 8: sorted and cut, each step spans exactly 8 neighbouring lengths."""
    steps = epoch_order(np.arange(1, 65), seed=0, epoch=0, per_step=8, batching="similar_length")
    assert sorted(int(step.max() - step.min()) for step in steps) == [7] * 8
    assert [int(step.max()) for step in steps] != sorted(
        (int(step.max()) for step in steps), reverse=True
    )  # steps are shuffled


def test_rows_are_dealt_round_robin():
    assert deal(np.array([10, 11, 12, 13, 14]), 2) == [MicroBatch([10, 12, 14]), MicroBatch([11, 13])]


def test_a_rank_without_rows_runs_an_uncounted_padding_batch():
    assert deal(np.array([5]), 3) == [MicroBatch([5]), MicroBatch([5], counted=False), MicroBatch([5], counted=False)]


@pytest.mark.parametrize(("rows", "batch", "world"), [(7, 2, 2), (1, 4, 3), (8, 2, 3), (5, 5, 2)])
def test_evaluation_sees_every_row_once_and_equally_many_batches(rows, batch, world):
    lengths = np.arange(rows) + 1
    plans = [evaluation_batches(lengths, batch, rank, world) for rank in range(world)]
    assert len({len(plan) for plan in plans}) == 1
    counted = [row for plan in plans for item in plan if item.counted for row in item.rows]
    assert sorted(counted) == list(range(rows))
    assert plans[0][0].rows[0] == rows - 1  # the longest row comes first
