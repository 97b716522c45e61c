"""How the predictions of earlier runs on this machine fared against what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.engines import label_of
from runner.record_format import RECORD_FILE
from runner.regular_files import read_regular

FOLDERS = (Path("outputs"), Path("multirun"))


@dataclass(frozen=True)
class PastPrediction:
    """One run: largest rank predicted and measured, in bytes."""

    run_id: str
    method: str
    predicted_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted_bytes / self.measured_bytes - 1


def past_predictions(folders: Sequence[Path] = FOLDERS, limit: int = 10) -> list[PastPrediction]:
    """The newest `limit` runs whose record holds a prediction and a measured peak; unreadable records are skipped."""
    paths = [path for folder in folders if folder.is_dir() for path in folder.rglob(RECORD_FILE)]
    newest = sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
    found: list[PastPrediction] = []
    for prediction in _read(newest):
        found.append(prediction)
        if len(found) == limit:
            break
    return found


def _read(paths: Sequence[Path]) -> Iterator[PastPrediction]:
    for path in paths:
        try:
            record = json.loads(read_regular(path))
        except (OSError, ValueError, RecursionError):
            continue
        predicted = _largest((record.get("memory_prediction") or {}).get("per_rank_bytes"))
        measured = _largest(record.get("peak_memory_bytes"))
        if predicted and measured:
            yield PastPrediction(
                str(record.get("run_id") or path.parent.name), label_of(record.get("config") or {}), predicted, measured
            )


def _largest(values: object) -> int:
    numbers = (
        [int(value) for value in values or [] if isinstance(value, (int, float))] if isinstance(values, list) else []
    )
    return max(numbers, default=0)
