"""Tokenise before the ranks start, in one process: for data whose number of training rows is known only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner import rundir
from runner.data.prepared import prepare_split
from runner.data.preparing import PREPARING, Progress, Report
from runner.recipe import load_recipe
from runner.rundir.heartbeat import Heartbeat
from runner.train import assets


def prepare_data(run_dir: Path) -> dict[str, Any]:
    """Write every split's features to the cache.

    Returns:
        `status` and `rows` by split; or `status: failed` with the error's text.
    """
    config = rundir.read_config(run_dir)
    try:
        recipe = load_recipe(config)
        tokenizer = assets.build_tokenizer(config)
        report = reporting(Heartbeat(run_dir, 0))
        splits = {name: prepare_split(recipe, tokenizer, name, report) for name in ("train", "validation", "test")}
    except Exception as error:  # noqa: BLE001
        return {"status": "failed", "error": f"{type(error).__name__}: {error}"}
    empty = [
        f"dataset.{name}: this split gives no row for the model ({'; '.join(split.notes)})"
        for name, split in splits.items()
        if split is not None and not len(split)
    ]
    if empty:
        return {"status": "failed", "error": "; ".join(empty)}
    return {"status": "completed", "rows": {name: len(split) for name, split in splits.items() if split is not None}}


def reporting(heartbeat: Heartbeat) -> Report:
    """What passes the progress of a preparation on as a heartbeat, so that it is shown and never taken for a hang."""

    def report(progress: Progress) -> None:
        rows = {"done": progress.done, "of": progress.total, "rate": progress.rate}
        heartbeat.beat(phase=f"{PREPARING}: {progress.split}", **rows)

    return report
