"""Features on disk: a split is tokenised once, by one rank, and memory-mapped by all.

The file is found by content: rows, tokenizer, recipe code and options decide its name, so an edited
row, another tokenizer or a changed recipe never meets an old file.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pyarrow as pa

from runner import __version__, paths
from runner.config.schema import DatasetConfig
from runner.data.files import Row, read_rows
from runner.data.scan import split_paths
from runner.recipe import Recipe

ROWS_AT_A_TIME = 1000  # rows tokenised together; bounds memory, whatever the size of the split


@dataclass
class PreparedSplit:
    """Features of one split.

    Attributes:
        table: memory-mapped; one row per training row.
        lengths: tokens per row, shape (rows,), int32.
        items: what the loss's mean counts per row, shape (rows,), int32.
        fingerprint: hash of the content.
        notes: what preparing did to rows (cut, dropped), one line each.
    """

    table: pa.Table
    lengths: np.ndarray
    items: np.ndarray
    fingerprint: str
    notes: list[str]

    def __post_init__(self) -> None:
        self._blocks = self.table.to_batches()
        self._starts = np.cumsum([0, *(block.num_rows for block in self._blocks)])

    def __len__(self) -> int:
        return self.table.num_rows

    def rows(self, indices: list[int]) -> list[dict[str, Any]]:
        """Features of some rows, in the order asked for."""
        return self._picked(indices).to_pylist()

    def _picked(self, indices: list[int]) -> pa.Table:
        """Some rows as a table of one-row slices.

        Arrow's own `take` copies the whole table first, as soon as it has several blocks.
        """
        blocks = np.searchsorted(self._starts, indices, side="right") - 1
        places = zip(blocks.tolist(), indices, strict=True)
        return pa.Table.from_batches(
            [self._blocks[block].slice(index - self._starts[block], 1) for block, index in places], self.table.schema
        )

    def longest(self, rows: int) -> PreparedSplit:
        """A split of at most this many of the longest rows."""
        kept = np.argsort(-self.lengths, kind="stable")[:rows]
        return PreparedSplit(
            self._picked(kept.tolist()), self.lengths[kept], self.items[kept], self.fingerprint, self.notes
        )

    def column(self, name: str) -> list[Any]:
        """One whole column; empty where there is none."""
        return self.table.column(name).to_pylist() if name in self.table.column_names else []


def prepare_split(recipe: Recipe, tokenizer: Any, split: str) -> PreparedSplit | None:
    """Features of a split, from the cache or made now; None where the configuration names no such split."""
    if getattr(recipe.config.dataset, split) is None:
        return None
    folder, source = _place(recipe, tokenizer, split)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder}.lock"):
        if not (folder / "facts.json").exists():
            _write(folder, recipe, tokenizer, source.rows)
    return _open(folder, folder.name)


def cached_split(recipe: Recipe, tokenizer: Any, split: str) -> PreparedSplit | None:
    """Features of a split if they have been written; never waits, never writes."""
    if getattr(recipe.config.dataset, split) is None:
        return None
    folder, _ = _place(recipe, tokenizer, split)
    return _open(folder, folder.name) if (folder / "facts.json").exists() else None


def _place(recipe: Recipe, tokenizer: Any, split: str) -> tuple[Path, _Source]:
    """The folder of a split's features, named by content, and where its rows come from."""
    dataset = recipe.config.dataset
    limit = {"train": dataset.max_train_rows, "validation": dataset.max_validation_rows}.get(split)
    source = _source(dataset, split)
    fingerprint = _fingerprint(recipe, tokenizer, source.fingerprint, limit)
    return paths.cache_dir(recipe.config.cache_dir) / "features" / fingerprint, _Source(
        islice(source.rows, limit), source.fingerprint
    )


@dataclass
class _Source:
    rows: Iterator[Row]
    fingerprint: str


def _source(dataset: DatasetConfig, split: str) -> _Source:
    if dataset.source == "hub":
        return _hub_source(dataset, split)
    paths = split_paths(dataset, split)
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return _Source((row for path in paths for row in read_rows(path)), digest.hexdigest())


def _hub_source(dataset: DatasetConfig, split: str) -> _Source:
    from datasets import load_dataset

    assert dataset.hub_id is not None
    loaded = load_dataset(dataset.hub_id, dataset.hub_config, revision=dataset.revision, split=getattr(dataset, split))
    return _Source(iter(loaded), loaded._fingerprint)


def _fingerprint(recipe: Recipe, tokenizer: Any, rows: str, limit: int | None) -> str:
    """Everything that decides the features."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        # The last call's settings stay in it; each call sets its own, and what decides them is in the options.
        backend.no_truncation()
        backend.no_padding()
    vocabulary = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    parts = {
        "runner": __version__,
        "rows": rows,
        "limit": limit,
        "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest(),
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "code": _code_hash(type(recipe)),
        "options": recipe.options.model_dump(mode="json"),
        "columns": recipe.config.dataset.columns,
        "labels": recipe.config.dataset.label_names,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _code_hash(recipe: type[Recipe]) -> str:
    """Hash of the recipe's file, its bases' files and this package: whatever may take part in making features."""
    files = {Path(inspect.getfile(item)) for item in recipe.__mro__ if item is not object}
    files |= set(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()


def _write(folder: Path, recipe: Recipe, tokenizer: Any, rows: Iterator[Row]) -> None:
    """Write `features.arrow` and `facts.json` next to the final folder, then move them there in one step."""
    recipe = type(recipe)(recipe.config)  # its own state: a recipe may carry a remainder from block to block
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    lengths: list[int] = []
    items: list[int] = []
    writer = None
    try:
        for block in iter(lambda: list(islice(rows, ROWS_AT_A_TIME)), []):
            columns = {name: [row.get(name) for row in block] for name in {name for row in block for name in row}}
            features = recipe.features(columns, tokenizer)
            table = pa.table(features)
            if not table.num_rows:
                continue  # too few tokens for a block yet; an empty table has no types
            if writer is None:
                schema = _with_open_nulls(table.schema)
                writer = pa.ipc.new_file(str(partial / "features.arrow"), schema)
            writer.write_table(table.cast(schema))
            for index in range(table.num_rows):
                one = {name: values[index] for name, values in features.items()}
                lengths.append(recipe.length(one))
                items.append(recipe.items(one))
        if writer is None:
            pa.ipc.new_file(str(partial / "features.arrow"), pa.schema([])).close()
        else:
            writer.close()
        np.savez(
            partial / "sizes.npz", lengths=np.array(lengths, dtype=np.int32), items=np.array(items, dtype=np.int32)
        )
        (partial / "facts.json").write_text(json.dumps({"rows": len(lengths), "notes": recipe.preparation_notes()}))
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _with_open_nulls(schema: pa.Schema) -> pa.Schema:
    """A first block whose references are all missing says nothing about their type: take integers."""
    return pa.schema(
        [pa.field(field.name, pa.int64() if pa.types.is_null(field.type) else field.type) for field in schema]
    )


def _open(folder: Path, fingerprint: str) -> PreparedSplit:
    facts = json.loads((folder / "facts.json").read_text())
    sizes = np.load(folder / "sizes.npz")
    table = pa.ipc.open_file(pa.memory_map(str(folder / "features.arrow"))).read_all()
    return PreparedSplit(table, sizes["lengths"], sizes["items"], fingerprint, facts["notes"])
