"""Rows of a tokenised split: the right ones whatever block they lie in, without touching the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from runner.data.prepared import PreparedSplit


def _split(blocks: list[list[int]]) -> PreparedSplit:
    """A split whose row n has n tokens, in blocks as given by their row numbers."""
    table = pa.Table.from_batches(
        [pa.record_batch({"input_ids": [[7] * row for row in block], "labels": block}) for block in blocks]
    )
    lengths = np.array([row for block in blocks for row in block], dtype=np.int32)
    return PreparedSplit(table, lengths, np.ones_like(lengths), "x", [])


@pytest.mark.parametrize("blocks", [[[1, 2, 3, 4, 5]], [[1, 2], [3], [4, 5]]], ids=["one block", "three blocks"])
def test_rows_come_in_the_order_asked_for(blocks: list[list[int]]) -> None:
    rows = _split(blocks).rows([4, 0, 2, 2, 1])
    assert [row["labels"] for row in rows] == [5, 1, 3, 3, 2]
    assert [len(row["input_ids"]) for row in rows] == [5, 1, 3, 3, 2]


def test_longest_keeps_the_longest_rows() -> None:
    kept = _split([[1, 9], [3, 8], [2]]).longest(2)
    assert kept.lengths.tolist() == [9, 8]
    assert [row["labels"] for row in kept.rows([1, 0])] == [8, 9]


def test_a_few_rows_of_many_blocks_take_no_memory(tmp_path: Path) -> None:
    """Arrow's `take` on a table of several blocks copies all of it: here 80 MB for one row."""
    block = pa.record_batch({"input_ids": [[7] * 100] * 1000, "labels": list(range(1000))})
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), block.schema) as writer:
        for _ in range(100):
            writer.write_batch(block)
    table = pa.ipc.open_file(pa.memory_map(str(tmp_path / "rows.arrow"))).read_all()
    split = PreparedSplit(table, np.zeros(100_000), np.zeros(100_000), "x", [])
    before = pa.total_allocated_bytes()
    table_of_rows = split._picked([99_999, 5])
    assert table_of_rows.column("labels").to_pylist() == [999, 5]
    assert pa.total_allocated_bytes() - before < 2**20
