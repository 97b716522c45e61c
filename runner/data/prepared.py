"""Features on disk: a split is tokenised once, by one rank, and memory-mapped by all.

The file is found by content: rows, tokenizer, recipe code and options decide its name, so an edited
row, another tokenizer or a changed recipe never meets an old file.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner import __version__, paths
from runner.compat.datasets_fingerprint import fingerprint
from runner.config.inputs import DatasetConfig
from runner.data.features import DamagedFeatures, Features, FeatureWriter, open_features
from runner.data.preparing import Preparing, Report, all_cores, locked, no_report
from runner.data.reading import FIRST, Findings, ReadLog, Row
from runner.data.scan import scan_split
from runner.data.source import SplitSource, file_hash, named_files
from runner.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PARTIAL = ".partial"  # ending of a folder whose features are not whole yet
STALE_SECONDS = 7 * 24 * 3600.0


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
        return int(self.table.num_rows)

    def rows(self, indices: list[int]) -> list[dict[str, Any]]:
        """Features of some rows, in the order asked for."""
        rows: list[dict[str, Any]] = self._picked(indices).to_pylist()
        return rows

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


def prepare_split(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, split: str, report: Report = no_report
) -> PreparedSplit | None:
    """Features of a split, from the cache or made now; None where the configuration names no such split.

    Args:
        report: called at least once a second while they are made, here or by another process.
    """
    if named_files(recipe.config.dataset, split) is None:
        return None
    folder, source = _place(recipe, tokenizer, split)
    folder.parent.mkdir(parents=True, exist_ok=True)
    progress = folder.with_suffix(".progress")
    with locked(folder.with_suffix(".lock"), split, progress, report):
        damage = None
        try:
            found = open_features(folder)
        except DamagedFeatures as error:
            found, damage = None, str(error)
            shutil.rmtree(folder)
        if found is None:
            _remove_stale(folder.parent, keep=folder)
            patience = recipe.config.launcher.hang_timeout_seconds
            total = recipe.config.dataset.rows.get(split)
            with all_cores(), Preparing(split, total, progress, report, patience) as preparing:
                _write(folder, recipe, tokenizer, source, preparing, damage)
            found = open_features(folder)
    assert found is not None
    return _opened(folder, found)


def _opened(folder: Path, found: Features) -> PreparedSplit:
    with contextlib.suppress(OSError):
        os.utime(folder)  # `runner cache prune` keeps what was used lately
    return PreparedSplit(found.table, found.lengths, found.items, folder.name, found.notes)


def _write(
    folder: Path,
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerBase,
    source: _Source,
    preparing: Preparing,
    damage: str | None,
) -> None:
    own = type(recipe)(recipe.config)
    writer = FeatureWriter(folder.with_suffix(PARTIAL), own, tokenizer)
    writer.write(source.rows, preparing.rows)
    writer.finish(folder, [*source.notes(), *writer.recipe.preparation_notes()], damage)


def _remove_stale(features: Path, keep: Path) -> None:
    """What killed preparations left of data, tokenizers or options that nobody asked for again."""
    old = time.time() - STALE_SECONDS
    for path in (*features.glob(f"*{PARTIAL}"), *features.glob("partial-*")):
        with contextlib.suppress(OSError):
            if path.stem != keep.name and path.stat().st_mtime < old:
                shutil.rmtree(path)


def cached_split(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, split: str) -> PreparedSplit | None:
    """Features of a split if they have been written whole; never waits, never writes."""
    if named_files(recipe.config.dataset, split) is None:
        return None
    folder, _ = _place(recipe, tokenizer, split)
    try:
        found = open_features(folder)
    except DamagedFeatures:
        return None
    return _opened(folder, found) if found is not None else None


def _place(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, split: str) -> tuple[Path, _Source]:
    """The folder of a split's features, named by content, and where its rows come from."""
    recipe.adjust_tokenizer(tokenizer)
    source = _source(recipe, split)
    fingerprint = _fingerprint(recipe, tokenizer, source.fingerprint)
    return paths.cache_dir(recipe.config.cache_dir) / "features" / fingerprint, source


def raw_rows(recipe: Recipe, split: str) -> Iterator[Row] | None:
    """The rows of a split as they are tokenised; None where the configuration names no such split."""
    return None if named_files(recipe.config.dataset, split) is None else _source(recipe, split).rows


def _source(recipe: Recipe, split: str) -> _Source:
    dataset = recipe.config.dataset
    return _hub_source(dataset, split) if dataset.source == "hub" else _local(recipe, split)


@dataclass
class _Source:
    rows: Iterator[Row]
    fingerprint: object
    notes: Callable[[], list[str]] = list


def _local(recipe: Recipe, split: str) -> _Source:
    source = SplitSource.of(recipe, split)
    hashes = [file_hash(path) for path in source.paths]
    cache = paths.cache_dir(recipe.config.cache_dir)
    log, dropped, read = ReadLog(), Findings(), Counter[str]()

    def rows() -> Iterator[Row]:
        held = scan_split(source, cache).held if source.holdout is not None else []
        for _, row in source.selected(held, log if source.drop else None, dropped):
            read["rows"] += 1
            yield row

    def notes() -> list[str]:
        lost = dropped.count + log.bad.count
        first = "; ".join(map(str, [*dropped.first, *log.bad.first][:FIRST]))
        said = (
            f"{lost:,} rows of its files were left out, as dataset.drop_bad_rows says, {read['rows']:,} used ({first})"
        )
        return [said] if lost else []

    return _Source(rows(), [hashes, source.key], notes)


def _hub_source(dataset: DatasetConfig, split: str) -> _Source:
    from datasets import load_dataset

    assert dataset.hub_id is not None
    loaded = load_dataset(dataset.hub_id, dataset.hub_config, revision=dataset.revision, split=getattr(dataset, split))
    limit = {"train": dataset.max_train_rows, "validation": dataset.max_validation_rows}.get(split)
    return _Source(islice(iter(loaded), limit), [fingerprint(loaded), limit])


def _fingerprint(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, rows: object) -> str:
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
        "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest(),
        "chat_template": getattr(tokenizer, "chat_template", None),
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
