"""At resume: whether the data files still hold what the run began with."""

from __future__ import annotations

from runner.config.schema import RunConfig
from runner.data.source import content_hashes
from runner.errors import Problem


def changed_data(config: RunConfig, recorded: object) -> list[Problem]:
    """One error for each local file whose bytes are not those of the run's start. A file that was only touched is the
    same.

    Args:
        recorded: `data_files` of the record: split → [path, SHA-256] of each file; of an older runner's record None.

    The record keeps what it says: a file that was put back as it was can be resumed with.
    """
    if not isinstance(recorded, dict):
        return []
    try:
        now = content_hashes(config.dataset)
    except OSError:
        return []  # a file that is gone is told by the data's own checks
    problems = []
    for split, before in recorded.items():
        after = now.get(split, [])
        if len(after) != len(before):
            why = f"the {split} split had {len(before)} files when the run began, it has {len(after)} now"
            problems.append(_refused(config, split, why))
            continue
        problems += [
            _refused(config, split, f"the {split} split has changed since the run began: {path} holds other bytes")
            for (_, was), (path, is_now) in zip(before, after, strict=True)
            if was != is_now
        ]
    return problems


def _refused(config: RunConfig, split: str, why: str) -> Problem:
    fix = "put the file back as it was, or start a new run on the new data"
    return Problem(f"dataset.{split}", getattr(config.dataset, split), why, fix)
