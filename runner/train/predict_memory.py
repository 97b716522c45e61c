"""The memory a run will need, predicted during its first seconds and kept in its record.

Runs in a process of its own, at low priority: the ranks do not wait for it. It takes the real lengths of the
tokenised data as soon as they are written.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from runner import paths, rundir
from runner.config import plan
from runner.config.schema import RunConfig
from runner.data.prepared import PreparedSplit, cached_split
from runner.memory import pass_cache
from runner.memory.estimate import predict_for_record
from runner.memory.workload import MeasuredLengths
from runner.recipe import load_recipe
from runner.rundir.record import write_atomically
from runner.train import assets

PATIENCE_SECONDS = 120.0  # for the data to be tokenised; then the configured maximum is taken


def predict_memory(run_dir: Path) -> dict[str, Any]:
    """Write `memory_prediction.json`: the prediction, or why there is none (`error`)."""
    os.nice(10)
    config = rundir.read_config(run_dir)
    pass_cache.keep_under(paths.cache_dir(config.cache_dir))
    try:
        prediction = predict_for_record(config, plan.world_size(config), _lengths(config))
    except Exception as error:  # noqa: BLE001
        prediction = {"error": f"{type(error).__name__}: {error}"}
    write_atomically(run_dir / rundir.PREDICTION_FILE, json.dumps(prediction))
    return {"status": "completed"}


def _lengths(config: RunConfig) -> MeasuredLengths | None:
    """Longest source and target in tokens over the training split (evaluation: validation), once it is tokenised."""
    name = "train" if config.mode == "train" else "validation"
    recipe, tokenizer = load_recipe(config), assets.build_tokenizer(config)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (split := cached_split(recipe, tokenizer, name)) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.2)
    return MeasuredLengths(
        _longest(split, "input_ids"), _longest(split, "labels"), f"longest of {len(split)} rows of {name}"
    )


def _longest(split: PreparedSplit, column: str) -> int:
    """Longest list in a column, in elements; 0 where the column holds no lists."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column not in split.table.column_names or not pa.types.is_list(split.table.column(column).type):
        return 0
    return int(pc.max(pc.list_value_length(split.table.column(column))).as_py() or 0)
