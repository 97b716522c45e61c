"""A folder of features: written block by block, in parts that a later start can use, opened only when it is whole."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.data.reading import Row
from runner.data.recipe_state import set_state, state_of
from runner.recipe import Recipe
from runner.rundir.record import write_atomically

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROWS_AT_A_TIME = 1000  # most rows that are tokenised together
BYTES_AT_A_TIME = 2**18  # most text that is tokenised together, but for a single row that is longer
PART_SECONDS = 20.0  # a preparation that is killed loses at most this much work
REBUILT_IS_NEWS_SECONDS = 600.0
FEATURES, SIZES, FACTS, DONE = "features.arrow", "sizes.npz", "facts.json", "done.json"


@dataclass
class Features:
    """What a whole folder holds: the memory-mapped table, tokens and items of each row, notes."""

    table: pa.Table
    lengths: np.ndarray
    items: np.ndarray
    notes: list[str]


class DamagedFeatures(Exception):
    """A folder of features that is there and cannot be used; the message says why."""


def open_features(folder: Path) -> Features | None:
    """The features of a folder; None where there is none.

    Raises:
        DamagedFeatures: a file is missing, cut short, or does not fit the others.
    """
    if not folder.is_dir():
        return None
    try:
        facts = json.loads((folder / FACTS).read_text())
        with np.load(folder / SIZES) as sizes:
            lengths, items = sizes["lengths"], sizes["items"]
        table = pa.ipc.open_file(pa.memory_map(str(folder / FEATURES))).read_all()
        rows, notes = facts["rows"], [str(note) for note in facts["notes"]]
        size = facts["bytes"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, pa.ArrowException) as error:
        raise DamagedFeatures(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None
    except Exception as error:  # a broken ZIP raises what it likes  # noqa: BLE001
        raise DamagedFeatures(f"{SIZES}: {type(error).__name__}: {error}") from None
    if not rows == table.num_rows == len(lengths) == len(items) or size != (folder / FEATURES).stat().st_size:
        raise DamagedFeatures(f"{FACTS} says {rows} rows, {FEATURES} has {table.num_rows}, {SIZES} {len(lengths)}")
    rebuilt = facts.get("rebuilt")
    if rebuilt and time.time() - rebuilt["at"] < REBUILT_IS_NEWS_SECONDS:
        notes.append(f"the prepared data in {folder} were damaged ({rebuilt['why']}) and have been made again")
    return Features(table, lengths, items, notes)


def blocks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in blocks bounded by number and by the size of their text."""
    block: list[Row] = []
    size = 0
    for row in rows:
        own = sum(map(_size, row.values()))
        if block and (len(block) == ROWS_AT_A_TIME or size + own > BYTES_AT_A_TIME):
            yield block
            block, size = [], 0
        block.append(row)
        size += own
    if block:
        yield block


def _size(value: object) -> int:
    """Characters of a value, roughly."""
    if isinstance(value, str):
        return len(value)
    return 8 if value is None or isinstance(value, (int, float)) else len(str(value))


class FeatureWriter:
    """Writes the features of one split into `partial`, beside the folder they are moved to when they are whole.

    Args:
        partial: may hold parts that an earlier writer finished: they are used where the recipe's state can be restored.
        recipe: with a state of its own: a recipe may carry a remainder from block to block.
    """

    def __init__(self, partial: Path, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
        self._partial, self.recipe, self._tokenizer = partial, recipe, tokenizer
        self._lengths: list[int] = []
        self._items: list[int] = []
        self._schema: pa.Schema | None = None
        self._writer: Any = None
        self._parts = self.rows_read = 0
        self._part_began = time.monotonic()
        if not self._go_on():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)

    def _go_on(self) -> bool:
        """Take up what an earlier writer left; whether that was possible."""
        try:
            done = json.loads((self._partial / DONE).read_text())
            with np.load(self._partial / f"{done['parts'] - 1}_{SIZES}") as sizes:
                self._lengths, self._items = sizes["lengths"].tolist(), sizes["items"].tolist()
            parts = [pa.ipc.open_file(pa.memory_map(str(self._part(number)))) for number in range(done["parts"])]
            if sum(part.get_batch(i).num_rows for part in parts for i in range(part.num_record_batches)) != len(
                self._lengths
            ):
                return False
            set_state(self.recipe, done["state"])
            self._schema, self._parts, self.rows_read = parts[0].schema, done["parts"], done["rows"]
        except Exception:  # whatever is wrong with it, the work is done again  # noqa: BLE001
            self._lengths, self._items, self.recipe = [], [], type(self.recipe)(self.recipe.config)
            return False
        return True

    def _part(self, number: int) -> Path:
        return self._partial / f"{number}_{FEATURES}"

    def write(self, rows: Iterator[Row], after_block: Callable[[int], None]) -> None:
        """Tokenise and write all rows that are not written yet.

        Args:
            rows: all rows of the split, from the first one on.
            after_block: called with the number of rows that are done.
        """
        for _ in islice(rows, self.rows_read):
            pass
        after_block(self.rows_read)
        for block in blocks(rows):
            self._write_block(block)
            self.rows_read += len(block)
            if time.monotonic() - self._part_began > PART_SECONDS:
                self._finish_part()
            after_block(self.rows_read)

    def _write_block(self, block: list[Row]) -> None:
        names = {name: None for row in block for name in row}
        features = self.recipe.features({name: [row.get(name) for row in block] for name in names}, self._tokenizer)
        table = pa.table(features)
        if not table.num_rows:
            return  # too few tokens for a block yet; an empty table has no types
        self._schema = self._schema or _with_open_nulls(table.schema)
        if self._writer is None:
            self._writer = pa.ipc.new_file(str(self._part(self._parts)), self._schema)
        self._writer.write_table(table.cast(self._schema))
        for index in range(table.num_rows):
            one = {name: values[index] for name, values in features.items()}
            self._lengths.append(self.recipe.length(one))
            self._items.append(self.recipe.items(one))

    def _finish_part(self) -> None:
        """Close the part under way and note down how far the work is."""
        self._part_began = time.monotonic()
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        state = state_of(self.recipe)
        if state is not None:
            self._save_sizes(self._partial / f"{self._parts}_{SIZES}")
            done = {"parts": self._parts + 1, "rows": self.rows_read, "state": state}
            write_atomically(self._partial / DONE, json.dumps(done))
        self._parts += 1

    def _save_sizes(self, path: Path) -> None:
        lengths, items = np.array(self._lengths, dtype=np.int32), np.array(self._items, dtype=np.int32)
        np.savez(path, lengths=lengths, items=items)

    def finish(self, folder: Path, notes: list[str], rebuilt: str | None) -> None:
        """Make one file of the parts and move all to its place in one step.

        Args:
            rebuilt: why an earlier folder was given up.
        """
        if self._writer is not None:
            self._writer.close()
            self._parts += 1
        self._join_parts()
        self._save_sizes(self._partial / SIZES)
        size = (self._partial / FEATURES).stat().st_size
        facts: dict[str, Any] = {"rows": len(self._lengths), "bytes": size, "notes": notes}
        if rebuilt is not None:
            facts["rebuilt"] = {"at": time.time(), "why": rebuilt}
        (self._partial / FACTS).write_text(json.dumps(facts))
        (self._partial / DONE).unlink(missing_ok=True)
        os.replace(self._partial, folder)

    def _join_parts(self) -> None:
        if self._parts == 1:
            os.replace(self._part(0), self._partial / FEATURES)
        else:
            with pa.ipc.new_file(str(self._partial / FEATURES), self._schema or pa.schema([])) as whole:
                for number in range(self._parts):
                    part = pa.ipc.open_file(pa.memory_map(str(self._part(number))))
                    for index in range(part.num_record_batches):
                        whole.write_batch(part.get_batch(index))
        for path in (*self._partial.glob(f"*_{FEATURES}"), *self._partial.glob(f"*_{SIZES}")):
            path.unlink()


def _with_open_nulls(schema: pa.Schema) -> pa.Schema:
    """A first block whose references are all missing says nothing about their type: take integers."""
    return pa.schema(
        [pa.field(field.name, pa.int64() if pa.types.is_null(field.type) else field.type) for field in schema]
    )
