"""The process beside a run that feeds one tracker: `python -m runner.trackers.side_process RUN_DIR NAME`.

Its standard input is closed when the run has ended, or when its runner has died; it then sends the rest and ends, at
the latest after `LAST_SECONDS`. The one warning a user gets goes to its standard output; all else to its log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from runner.errors import Problem
from runner.secrets import redacted
from runner.trackers import tracker
from runner.trackers.sending import TRACKING, Sender

POLL_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
LAST_SECONDS = 120.0  # for the rest, after the run has ended


def main() -> None:
    """Feed the tracker until the run has ended and everything is sent."""
    run_dir, name = Path(sys.argv[1]), sys.argv[2]
    os.nice(10)
    user = _own_output(run_dir, name)
    with open(run_dir / TRACKING / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the process of an earlier attempt may still be sending
        code = feed(Sender(run_dir, name, tracker(name)), lambda text: _tell(user, f"warning: tracker={name}: {text}"))
    sys.stderr.flush()
    os._exit(code)  # libraries' threads may wait for a server


def _own_output(run_dir: Path, name: str) -> int:
    """Everything libraries print goes to the tracker's log; returns what leads to the user."""
    (run_dir / TRACKING).mkdir(exist_ok=True)
    user = os.dup(1)
    log = os.open(run_dir / TRACKING / f"{name}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return user


def _tell(user: int, line: str) -> None:
    with contextlib.suppress(OSError):  # the runner may have gone
        os.write(user, (line + "\n").encode())


def feed(sender: Sender, warn: Callable[[str], None]) -> int:
    """Send what is new about once a second, with growing pauses while it fails; returns the exit status."""
    pause, told, ended = POLL_SECONDS, False, 0.0
    while True:
        try:
            sender.send()
            pause = POLL_SECONDS
        except FileNotFoundError as error:  # the record is not written yet, or the folder is gone
            if ended:
                print(error, file=sys.stderr, flush=True)
                return 1
        except Exception as error:  # noqa: BLE001
            print(redacted(traceback.format_exc()), file=sys.stderr, flush=True)
            if not told:
                warn(problem_text(error))
            told, pause = True, min(2 * pause, LONGEST_PAUSE_SECONDS)
        if sender.complete:
            return 0
        if ended and time.monotonic() > ended + LAST_SECONDS:
            return 1
        if ended:
            time.sleep(min(pause, 5.0))
        elif _input_ends_within(pause):
            ended = time.monotonic()


def problem_text(error: Exception) -> str:
    """One line about what failed, and what can be done about it."""
    said = redacted(" ".join(str(error).split()))
    line = Problem("", None, f"{type(error).__name__}: {said}").line().removeprefix("error: : ")
    short = line if len(line) <= 300 else line[:299] + "…"
    return f"{short}; the run goes on, `python -m runner track RUN_DIR` sends later what is missing"


def _input_ends_within(seconds: float) -> bool:
    ready = select.select([0], [], [], seconds)[0]
    return bool(ready) and os.read(0, 1024) == b""


if __name__ == "__main__":
    main()
