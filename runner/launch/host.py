"""The host: imports the heavy libraries once, then forks a job for every request.

Requests come as JSON lines on standard input, answers go as JSON lines to a pipe. A sweep keeps one host,
so that a further cell starts in about a second; each job is still a process tree of its own.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from runner.launch.preload import preload
from runner.launch.process_signals import die_with_parent, leave_stopping_to_the_runner


def main() -> None:
    """Serve requests until standard input ends or the runner does."""
    leave_stopping_to_the_runner()
    die_with_parent(int(sys.argv[1]))
    answers = os.fdopen(int(sys.argv[2]), "w", buffering=1)
    preload(sys.argv[3:])
    print(json.dumps({"event": "ready"}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        _serve(request, answers)


def _serve(request: dict[str, Any], answers: IO[str]) -> None:
    if request.get("background"):
        _in_background(request)
        return
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(request, parent, writing)
    os.close(writing)
    print(json.dumps({"event": "started", "pid": child}), file=answers)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    outcome = (
        json.loads(text)
        if text
        else {"status": "failed", "failures": {}, "job_exit": os.waitstatus_to_exitcode(status)}
    )
    print(json.dumps({"event": "ended", **outcome}), file=answers)


def _in_background(request: dict[str, Any]) -> None:
    """Fork a job that nobody waits for; ended ones are collected on the way."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    parent = os.getpid()
    if os.fork() == 0:
        _child(request, parent, os.open(os.devnull, os.O_WRONLY))


def _child(request: dict[str, Any], parent: int, writing: int) -> None:
    """In the forked job: do the work, send the outcome, end without the host's clean-up."""
    code = 1
    try:
        die_with_parent(parent)
        gc.enable()
        from runner.launch.job import in_own_session

        in_own_session()
        run_dir = Path(request["run_dir"])
        _log_to(run_dir / "logs" / request.get("environment", {}).get("RUNNER_LAUNCH_LOG", "launch.log"))
        os.chdir(request["cwd"])
        os.environ.update(request.get("environment", {}))
        outcome = _work(request["op"])(run_dir)
        with os.fdopen(writing, "w") as pipe:
            json.dump(outcome, pipe)
        code = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _work(op: str) -> Callable[[Path], dict[str, Any]]:
    if op == "prepare":
        from runner.train.prepare_data import prepare_data

        return prepare_data
    if op == "predict":
        from runner.train.predict_memory import predict_memory

        return predict_memory
    if op == "check_model":
        from runner.train.model_check import check_model

        return check_model
    if op == "build":
        return _build
    from runner.launch.job import run_job

    return run_job


def _build(run_dir: Path) -> dict[str, Any]:
    from runner import rundir
    from runner.engines import engine_of

    return engine_of(rundir.read_config(run_dir)).build_job(run_dir)


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)


if __name__ == "__main__":
    main()
