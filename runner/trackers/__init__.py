"""Experiment trackers: what a run's own files say, sent on by a process beside the run.

Ranks know nothing of trackers. Each chosen tracker has a process of its own that reads `record.json`, `metrics.jsonl`
and `system.jsonl` as they grow; `python -m runner track RUN_DIR` does the same later. So no tracker can slow, hang or
fail a run. A tracker is one class in a module of its own, registered here and chosen by `conf/tracker/NAME.yaml`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError, nearest
from runner.trackers.tracker import Tracker

_CLASSES = {
    "tensorboard": "TensorBoard",
    "mlflow": "MLflow",
    "wandb": "WandB",
    "trackio": "Trackio",
}
NAMES = tuple(_CLASSES)


def tracker(name: str) -> Tracker:
    """A tracker by its name; its library is not imported.

    Raises:
        RequestError: for a name that is none.
    """
    if name not in _CLASSES:
        fix = f"use {nearest(name, NAMES, cutoff=0.4) or 'one of ' + ', '.join(NAMES)}"
        raise RequestError(Problem("tracker", name, "there is no such tracker", fix))
    module = importlib.import_module(f"runner.trackers.{name}")
    found: Tracker = getattr(module, _CLASSES[name])()
    return found


def chosen(config: RunConfig) -> list[str]:
    """Names of the trackers a run uses."""
    return [name for name, used in config.tracker.use.items() if used]


def check_trackers(config: RunConfig) -> list[Problem]:
    """What keeps the chosen trackers from working: unknown, not installed, no credentials. Nothing is imported."""
    problems: list[Problem] = []
    for name in chosen(config):
        try:
            problems += tracker(name).problems()
        except RequestError as error:
            problems += error.problems
    return problems


def credential_variables(names: Iterable[str] = NAMES) -> set[str]:
    """Environment variables that hold the trackers' credentials; ranks do not get them."""
    return {variable for name in names for variable in tracker(name).credentials}
