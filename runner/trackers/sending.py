"""Sending a run folder to one tracker: what is new since the last time, remembered in the folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.rundir.record import write_atomically
from runner.trackers.run_folder import Folder
from runner.trackers.tracker import Tracker

TRACKING = "tracking"


@dataclass
class Sent:
    """What a tracker has been sent, in `tracking/NAME.json`.

    Attributes:
        id: the run's identity in the tracker.
        step: optimizer step of the last line sent.
        epochs, system: entries sent.
        attempts: starts and resumes of the run, as far as the tracker knows of them.
        status: how the run ended, once that has been sent.
    """

    id: str | None = None
    step: int = 0
    epochs: int = 0
    system: int = 0
    attempts: int = 0
    status: str | None = None

    @classmethod
    def read(cls, path: Path) -> Sent:
        """What was remembered; nothing where the file is missing or torn."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return cls()


class Sender:
    """Sends one run folder to one tracker, in as many goes as it takes.

    Args:
        again: send everything once more, to a run opened anew in the tracker.
    """

    def __init__(self, run_dir: Path, name: str, tracker: Tracker, again: bool = False) -> None:
        self._run_dir, self._tracker = run_dir, tracker
        self.path = run_dir / TRACKING / f"{name}.json"
        self.sent = Sent() if again else Sent.read(self.path)
        self._open = False

    @property
    def complete(self) -> bool:
        """Whether everything up to the run's end has been sent."""
        return self.sent.status is not None and not self._open

    def up_to_date(self) -> bool:
        """Whether the tracker has the run's newest attempt with its end."""
        return self.sent.status is not None and self.sent.attempts == Folder.read(self._run_dir).attempts

    def send(self) -> None:
        """Send what is new; a run that was ended is closed in the tracker as well.

        Raises:
            Exception: whatever the tracker's library raises; what was sent until then is remembered.
        """
        folder = Folder.read(self._run_dir)
        sent = self.sent
        if not self._open:
            if sent.status is not None and sent.attempts == folder.attempts:
                return
            self._start(folder)
        lines = folder.step_lines(sent.step)
        epochs, system = folder.epoch_lines(sent.epochs), folder.system_lines(sent.system)
        ending = folder.ending()
        if lines or epochs or system:
            self._tracker.log(sorted([*lines, *epochs, *system], key=lambda line: line.step))
            sent.step = lines[-1].step if lines else sent.step
            sent.epochs, sent.system = sent.epochs + len(epochs), sent.system + len(system)
            self._remember()
        if ending is not None:
            self._tracker.finish(ending)
            sent.status, self._open = ending.status, False
            self._remember()

    def _start(self, folder: Folder) -> None:
        """Open the run; of a new attempt the steps behind its checkpoint are sent again."""
        sent = self.sent
        if sent.attempts != folder.attempts:
            sent.step = min(sent.step, folder.resumed_step) if sent.attempts else sent.step
            sent.epochs = min(sent.epochs, len(folder.record.get("epochs") or []))
            sent.attempts = folder.attempts
        sent.system = min(sent.system, len(folder.system))
        sent.id = self._tracker.start(folder.described(), sent.id)
        sent.status, self._open = None, True
        self._remember()

    def _remember(self) -> None:
        self.path.parent.mkdir(exist_ok=True)
        write_atomically(self.path, json.dumps(asdict(self.sent), indent=1) + "\n")
