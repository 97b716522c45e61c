"""Which rows each rank sees in each micro batch: the same for every launcher, every row once an epoch.

The order is a function of (seed, epoch, lengths, batch sizes, world size) alone. Rows are dealt to the
ranks of a step from one global batch, so DDP and every ZeRO stage train on identical batches.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

POOL = 50  # global batches sorted by length together; larger groups more tightly, smaller mixes more


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one forward pass of one rank.

    Attributes:
        rows: indices into the split.
        counted: False for a padding batch: a rank without rows in the last step runs one row with weight 0,
            because collective operations need every rank.
    """

    rows: list[int]
    counted: bool = True


def epoch_order(lengths: np.ndarray, seed: int, epoch: int, per_step: int, batching: str) -> list[np.ndarray]:
    """Rows of each optimizer step, in order; the last step holds the remainder.

    Args:
        lengths: tokens per row, shape (rows,).
        per_step: rows a full step takes: micro batch × accumulation × ranks.
        batching: `random`, or `similar_length`: rows are shuffled, sorted by length within pools of
            POOL steps, cut into steps, and the steps shuffled; `longest_first` (trials of `fit`): by length alone.
    """
    if batching == "longest_first":
        order = _longest_first(np.arange(len(lengths)), lengths)
        return [order[start : start + per_step] for start in range(0, len(order), per_step)]
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    whole = len(order) - len(order) % per_step
    full = order[:whole].reshape(-1, per_step)
    if batching == "similar_length" and whole:
        # The remainder is set aside before sorting: cut off afterwards it would always be the shortest rows of a pool.
        pools = [_longest_first(full[start : start + POOL].ravel(), lengths) for start in range(0, len(full), POOL)]
        full = random.permutation(np.concatenate(pools).reshape(-1, per_step))
    return [*full, *([order[whole:]] if whole < len(order) else [])]


def _longest_first(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return rows[np.argsort(-lengths[rows], kind="stable")]


def deal(rows: np.ndarray, world_size: int) -> list[MicroBatch]:
    """The rows of one step, one micro batch for each rank, as even as they can be.

    Ranks take turns (row 0, world_size, 2·world_size, …), so that after sorting by length no rank
    gets all the long ones.
    """
    if len(rows) == 0:
        raise ValueError("a step without rows")
    dealt = [rows[rank::world_size].tolist() for rank in range(world_size)]
    return [MicroBatch(own) if own else MicroBatch([int(rows[0])], counted=False) for own in dealt]


def evaluation_batches(lengths: np.ndarray, micro_batch_size: int, rank: int, world_size: int) -> list[MicroBatch]:
    """Every row once over all ranks, long rows first, equally many batches on every rank (padding
    batches at the end).
    """
    order = np.argsort(-lengths, kind="stable")
    batches = [order[start : start + micro_batch_size].tolist() for start in range(0, len(order), micro_batch_size)]
    own = [MicroBatch(rows) for rows in batches[rank::world_size]]
    rounds = -(-len(batches) // world_size)
    padding_batch = [MicroBatch([int(order[-1])], counted=False)] if len(order) else []
    return own + padding_batch * (rounds - len(own))


def order_hash(steps: list[np.ndarray]) -> str:
    """A short hash of an epoch's order, kept in the record: equal hashes mean equal batches."""
    digest = hashlib.sha256()
    for step in steps:
        digest.update(np.ascontiguousarray(step, dtype=np.int64).tobytes() + b"|")
    return digest.hexdigest()[:16]
