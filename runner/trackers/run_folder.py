"""What a run folder has to tell a tracker: read anew each time, so that live and late sending are the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from runner.monitors.system_log import SYSTEM_FILE
from runner.regular_files import read_regular
from runner.report.liveness import runner_liveness
from runner.report.metrics_log import METRICS_NAME
from runner.rundir.names import CONFIG_FILE
from runner.rundir.record import FILE
from runner.secrets import redacted
from runner.trackers.flat import flattened, numbers
from runner.trackers.tracker import Ending, Line, Scalar, TrackedRun

NO_STEP_VALUES = ("step", "epoch", "elapsed_seconds")
EPOCH_FIGURES = "epoch/"
SUMMARY_KEYS = ("phases", "peak_memory_bytes", "wall_seconds", "time_to_first_step_seconds", "num_parameters", "best")


@dataclass(frozen=True)
class Folder:
    """A run folder as it stands.

    Attributes:
        record: `record.json`.
        steps, system: the whole lines of `metrics.jsonl` and `system.jsonl`.
    """

    path: Path
    record: dict[str, Any]
    steps: list[dict[str, Any]]
    system: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Folder:
        """Read the folder.

        Raises:
            OSError, ValueError: where it has no readable record.
        """
        record = json.loads(read_regular(path / FILE))
        if not isinstance(record, dict) or "config" not in record:
            raise ValueError("this is no record of a run")
        return cls(path, record, _lines(path / METRICS_NAME), _lines(path / SYSTEM_FILE))

    @property
    def attempts(self) -> int:
        """How often the run was started or resumed."""
        return len(self.record.get("attempts") or [])

    @property
    def resumed_step(self) -> int:
        """Optimizer steps that were done when the newest attempt began."""
        attempts = self.record.get("attempts") or [{}]
        return int(attempts[-1].get("resumed_from_step") or 0)

    @property
    def started(self) -> float:
        """When the command was typed, in seconds since the epoch."""
        return _seconds(self.record.get("started_at")) or 0.0

    def described(self) -> TrackedRun:
        """What a tracker is told when the run is opened."""
        record = self.record
        parameters, shortened = flattened(_redacted(record["config"]))
        cell = record.get("cell") or {}
        tracker = record["config"].get("tracker") or {}
        name = f"{self.path.parent.name}/{self.path.name}" if cell else self.path.name
        return TrackedRun(
            folder=self.path,
            name=name,
            project=str(tracker.get("project") or "finetune-runner"),
            parameters=parameters,
            tags=_tags(record, shortened)
            | {str(key): str(value) for key, value in (tracker.get("tags") or {}).items()},
            started=self.started,
            sweep=cell.get("sweep"),
            resumed_step=self.resumed_step,
        )

    def step_lines(self, after: int) -> list[Line]:
        """Logged optimizer steps behind step `after`."""
        return [
            Line(int(line["step"]), self._at(line), numbers(_without(line, NO_STEP_VALUES), "train/"))
            for line in self.steps
            if isinstance(line.get("step"), int) and line["step"] > after
        ]

    def epoch_lines(self, after: int) -> list[Line]:
        """Epochs behind the first `after` ones: times and training loss under `epoch/`, scores under `eval/`."""
        epochs = self.record.get("epochs") or []
        lines = []
        for entry in epochs[after:]:
            values = numbers(_without(entry, ("metrics",)), EPOCH_FIGURES) | numbers(
                entry.get("metrics") or {}, "eval/"
            )
            step = self._last_step(int(entry["epoch"]), len(epochs))
            lines.append(Line(step, self._time_of(step), values))
        return lines

    def system_lines(self, after: int) -> list[Line]:
        """Lines of `system.jsonl` behind the first `after` ones."""
        return [
            Line(int(line.get("step") or 0), self._at(line), numbers(_without(line, NO_STEP_VALUES), "system/"))
            for line in self.system[after:]
        ]

    def ending(self) -> Ending | None:
        """How the run ended; None while it goes on."""
        record = self.record
        status = str(record.get("status"))
        if status == "running":
            if runner_liveness(record.get("runner") or {}) != "dead":
                return None
            status = "killed"
        files = tuple(path for name in (FILE, CONFIG_FILE) if (path := self.path / name).is_file())
        ended = _seconds(record.get("ended_at")) or (self.path / FILE).stat().st_mtime
        reason = redacted(str(record["reason"])) if record.get("reason") else None
        return Ending(status, reason, ended, self._summary(), files)

    def _summary(self) -> dict[str, Scalar]:
        chosen = {key: self.record[key] for key in SUMMARY_KEYS if self.record.get(key) is not None}
        test = (self.record.get("test") or {}).get("metrics") or {}
        predicted = (self.record.get("memory_prediction") or {}).get("per_rank_device_bytes")
        extra: dict[str, Any] = {"test": test, "predicted_memory_bytes": predicted or []}
        evaluated = {name: found.get("metrics") for name, found in (self.record.get("evaluations") or {}).items()}
        return {**numbers({**chosen, **extra, **evaluated}, "summary/")}

    def _at(self, line: dict[str, Any]) -> float:
        return self.started + float(line.get("elapsed_seconds") or 0.0)

    def _last_step(self, epoch: int, epochs: int) -> int:
        """Optimizer steps done at the end of an epoch, counted from 1: known for the newest, even parts before."""
        total = self.record.get("optimizer_steps") or (self.steps[-1]["step"] if self.steps else 0)
        return round(int(total) * epoch / max(1, epochs))

    def _time_of(self, step: int) -> float:
        times = [self._at(line) for line in self.steps if int(line.get("step") or 0) <= step]
        return times[-1] if times else self.started


def _tags(record: dict[str, Any], shortened: list[str]) -> dict[str, str]:
    config, code = record["config"], record.get("code") or {}
    tags = {
        "run_id": record.get("run_id"),
        "method": record.get("method"),
        "recipe": (config.get("recipe") or {}).get("name"),
        "model": (config.get("model") or {}).get("name"),
        "dataset": (config.get("dataset") or {}).get("name"),
        "config_hash": record.get("config_hash"),
        "git_commit": code.get("git_commit"),
        "git_dirty": code.get("dirty"),
        "command": record.get("command"),
        "note": record.get("note"),
        "shortened_parameters": ", ".join(shortened),
    }
    return {name: redacted(str(value)) for name, value in tags.items() if value not in (None, "")}


def _redacted(config: dict[str, Any]) -> dict[str, Any]:
    """Without what is a secret today: a record of another environment could not know it."""
    content: dict[str, Any] = json.loads(redacted(json.dumps(config, ensure_ascii=False)))
    return content


def _without(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file; [] where there is none. A torn last line is left for the next time."""
    try:
        text = read_regular(path).decode("utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _seconds(moment: object) -> float | None:
    """An ISO 8601 time in seconds since the epoch."""
    try:
        return datetime.fromisoformat(str(moment)).timestamp()
    except ValueError:
        return None
