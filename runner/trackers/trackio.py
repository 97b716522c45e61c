"""Trackio: a local sqlite file a project under TRACKIO_DIR, no account; TRACKIO_SPACE_ID sends it to a Space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.trackers.tracker import Ending, Line, TrackedRun, Tracker


class Trackio(Tracker):
    """One trackio run; the cells of a sweep share a group. Look at it with `trackio show`."""

    module = "trackio"
    extra = "trackio"
    credentials = ("TRACKIO_WRITE_TOKEN",)

    def start(self, run: TrackedRun, known_id: str | None) -> str:
        import trackio

        name = known_id or run.name
        self._last = 0
        self._run: Any = trackio.init(
            project=run.project,
            name=name,
            group=run.sweep,
            config={**run.parameters, **{f"tags.{key}": value for key, value in run.tags.items()}},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return name

    def log(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._run.log(dict(line.values), step=line.step)
            self._last = max(self._last, line.step)

    def finish(self, ending: Ending) -> None:
        self._run.log({**ending.summary, "status": ending.status, "reason": ending.reason or ""}, step=self._last)
        self._run.finish()
