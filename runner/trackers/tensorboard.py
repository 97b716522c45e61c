"""TensorBoard: an events file under `tensorboard/` in the run folder. No torch, no TensorFlow, no network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner.trackers.tracker import Ending, Line, TrackedRun, Tracker

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

FOLDER = "tensorboard"


class TensorBoard(Tracker):
    """Scalars, the configuration as hyper-parameters and as text; look at them with `tensorboard --logdir outputs`."""

    module = "tensorboard"
    extra = "tensorboard"

    def start(self, run: TrackedRun, known_id: str | None) -> str:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer: EventFileWriter = EventFileWriter(str(run.folder / FOLDER))
        self._step = run.resumed_step
        if known_id is not None:  # what lies behind the checkpoint is logged anew
            log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.add_event(event_pb2.Event(wall_time=run.started, step=run.resumed_step + 1, session_log=log))
        else:
            self._add(hparams_pb(run.parameters, trial_id=run.name, start_time_secs=run.started), 0, run.started)
            self._text("configuration", run.parameters, run.started)
        self._text("tags", run.tags, run.started)
        self._writer.flush()
        return FOLDER

    def log(self, lines: Sequence[Line]) -> None:
        from tensorboard.compat.proto import summary_pb2

        for line in lines:
            values = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in line.values.items()]
            self._add(summary_pb2.Summary(value=values), line.step, line.time)
            self._step = max(self._step, line.step)
        self._writer.flush()

    def finish(self, ending: Ending) -> None:
        told = {"status": ending.status, "reason": ending.reason or "", **ending.summary}
        self._text("summary", told, ending.time)
        self._writer.close()

    def _text(self, name: str, values: dict[str, Any], moment: float) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        cells = [(key, str(value).replace("|", "\\|").replace("\n", " ")) for key, value in values.items()]
        table = "\n".join(["| key | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in cells)])
        self._add(text_pb(name, table), self._step, moment)

    def _add(self, summary: Summary, step: int, moment: float) -> None:
        from tensorboard.compat.proto import event_pb2

        self._writer.add_event(event_pb2.Event(wall_time=moment, step=step, summary=summary))
