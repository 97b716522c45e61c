"""MLflow: a run in an experiment; a sweep's cells are nested under a parent run. MLFLOW_TRACKING_URI says where."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import Problem
from runner.trackers.tracker import Ending, Line, Scalar, TrackedRun, Tracker, from_environment

if TYPE_CHECKING:
    from mlflow.entities import Metric

STATUS = {"completed": "FINISHED", "failed": "FAILED", "preempted": "KILLED", "killed": "KILLED"}
MOST_METRICS = 1000  # in one call
MOST_PARAMETERS = 100
SWEEP_TAG = "finetune_runner.sweep"
PARENT_TAG = "mlflow.parentRunId"


class MLflow(Tracker):
    """Parameters, metrics by step with their own times, tags, and the record as an artifact.

    Without MLFLOW_TRACKING_URI the runs go to `./mlruns`.
    """

    module = "mlflow"
    extra = "mlflow"
    credentials = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME")

    def problems(self) -> list[Problem]:
        found = super().problems()
        uri = from_environment("MLFLOW_TRACKING_URI") or ""
        if not found and "@" in uri.partition("://")[2].partition("/")[0]:
            why = "credentials in the address would end up in files"
            fix = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
            found.append(Problem("tracker", "mlflow", why, fix))
        return found

    def start(self, run: TrackedRun, known_id: str | None) -> str:
        for name, value in {  # a server that does not answer is asked again by the caller, with pauses of its own
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
            "MLFLOW_ALLOW_FILE_STORE": "true",
        }.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=from_environment("MLFLOW_TRACKING_URI") or _local_store())
        self._parent: str | None = None
        experiment = self._experiment(run.project)
        if run.sweep is not None:
            self._parent = self._parent_run(experiment, run)
        if known_id is not None:
            self._client.update_run(known_id, status="RUNNING")
            self._id = known_id
        else:
            self._id = self._new_run(experiment, run)
        return self._id

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._client.create_experiment(name))

    def _new_run(self, experiment: str, run: TrackedRun) -> str:
        from mlflow.entities import Param

        tags = run.tags | ({PARENT_TAG: self._parent} if self._parent else {})
        if "git_commit" in tags:
            tags["mlflow.source.git.commit"] = tags["git_commit"]
        created = self._client.create_run(experiment, int(run.started * 1000), tags, run.name)
        identity = str(created.info.run_id)
        parameters = [Param(name, str(value)) for name, value in run.parameters.items()]
        for start in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(identity, params=parameters[start : start + MOST_PARAMETERS])
        return identity

    def _parent_run(self, experiment: str, run: TrackedRun) -> str:
        """The run of the whole sweep: the first cell makes it."""
        query = f"tags.`{SWEEP_TAG}` = '{run.sweep}'"
        found = self._client.search_runs([experiment], query, max_results=1)
        if found:
            return str(found[0].info.run_id)
        tags = {SWEEP_TAG: str(run.sweep)}
        created = self._client.create_run(experiment, int(run.started * 1000), tags, run.folder.parent.name)
        return str(created.info.run_id)

    def log(self, lines: Sequence[Line]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, int(line.time * 1000), line.step)
            for line in lines
            for name, value in line.values.items()
        ]
        self._send(metrics)

    def _send(self, metrics: list[Metric]) -> None:
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + MOST_METRICS])

    def finish(self, ending: Ending) -> None:
        from mlflow.entities import Metric

        moment = int(ending.time * 1000)
        self._send([Metric(name, float(value), moment, 0) for name, value in ending.summary.items() if _number(value)])
        self._client.set_tag(self._id, "status", ending.status)
        self._client.set_tag(self._id, "reason", (ending.reason or "")[:500])
        for path in ending.files:
            self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id, STATUS.get(ending.status, "FAILED"), moment)
        if self._parent is not None:  # after each cell: nobody knows here which one is the last
            self._client.set_terminated(self._parent, "FINISHED", moment)


def _number(value: Scalar) -> bool:
    return isinstance(value, (int, float))


def _local_store() -> str:
    return Path("mlruns").absolute().as_uri()
