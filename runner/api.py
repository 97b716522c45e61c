"""The command line's verbs as functions, for notebooks and programs: the same checks, and errors with the same lines.

    import runner
    record = runner.run(["model=deberta_xl", "zero_stage=2"])

What a command would print goes to standard output here, too. A wrong request raises `RequestError`, whose text is what
the command prints; a run that fails or is stopped raises `RunFailed`. Call them from the main thread: signals are
theirs meanwhile, and are given back afterwards.
"""

from __future__ import annotations

import contextlib
import io
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from runner.errors import EXIT_COMPLETED, RequestError

__all__ = ["RequestError", "RunFailed", "estimate", "fit", "render", "report", "run"]


class RunFailed(RuntimeError):
    """A run that was started and did not complete.

    Attributes:
        record: its record.
        exit_status: what the command would have ended with.
    """

    def __init__(self, record: dict[str, Any], exit_status: int) -> None:
        super().__init__(f"{record.get('status')}: {record.get('reason')}")
        self.record, self.exit_status = record, exit_status


def run(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """`python -m runner OVERRIDES`; returns the record of the completed run.

    A run that was handed to a cluster and goes on there has no record yet: `{"status": "queued", "run_dir": …}`.

    Raises:
        RequestError: with everything that is wrong with the request.
        RunFailed: where the run did not complete.
    """
    from runner.cli.request import composed_request
    from runner.cli.run import run_composed
    from runner.rundir.record import FILE, Record

    started = time.monotonic()
    with _signals_given_back():
        composed = composed_request(list(overrides))
        status = run_composed(composed, started)
    if not (composed.run_dir / FILE).exists():
        return {"status": "queued", "run_dir": str(composed.run_dir)}
    record = Record.read(composed.run_dir).data
    if status != EXIT_COMPLETED:
        raise RunFailed(record, status)
    return record


def render(overrides: Sequence[str] = ()) -> dict[str, str]:
    """The files that `python -m runner render OVERRIDES` writes, by name; nothing is written here.

    Raises:
        RequestError: with everything that is wrong with the request.
    """
    from runner import render as files
    from runner.cli.request import composed_request
    from runner.preflight.check import check

    checked = check(composed_request(list(overrides)), starting=False)
    return files.render(checked.config, checked.run_dir, checked.total_steps, checked.own_file)


def estimate(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """`python -m runner estimate ARGUMENTS --json`, as a mapping.

    Raises:
        RequestError: with everything that is wrong with the request.
    """
    from runner.cli.estimate import main

    found: dict[str, Any] = json.loads(_printed(main, [*arguments, "--json"]))
    return found


def fit(arguments: Sequence[str] = ()) -> str:
    """`python -m runner fit ARGUMENTS`; returns what it prints.

    Raises:
        RequestError: with everything that is wrong with the request.
    """
    from runner.cli.fit import main

    with _signals_given_back():
        return _printed(main, list(arguments))


def report(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """`python -m runner report ARGUMENTS --format json`, parsed.

    Raises:
        RequestError: where a folder cannot be read.
    """
    from runner.cli.report import main

    with contextlib.redirect_stderr(io.StringIO()) as said:
        text = _printed(main, [*arguments, "--format", "json"])
    if not text:
        raise _Told(said.getvalue())
    found: dict[str, Any] = json.loads(text)
    return found


class _Told(RequestError):
    """A wrong request, in the line that its verb has printed."""

    def __init__(self, line: str) -> None:
        super().__init__([])
        self.args = (line.strip(),)


def _printed(main: Callable[[list[str]], int], arguments: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(arguments)
    return out.getvalue()


@contextlib.contextmanager
def _signals_given_back() -> Iterator[None]:
    """A command ignores signals once its run has ended, because it exits; a notebook goes on."""
    from runner.launch.process_signals import STOPPING

    before = {number: signal.getsignal(number) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
