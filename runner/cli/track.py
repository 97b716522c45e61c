"""`python -m runner track RUN_DIR … [tracker=NAME …]`: send run folders to trackers, now and in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.errors import EXIT_COMPLETED, EXIT_FAILED, Problem, RequestError
from runner.report.records import find_run_folders
from runner.rundir import read_config
from runner.trackers import chosen, tracker
from runner.trackers.sending import Sender
from runner.trackers.side_process import problem_text

USAGE = """usage: python -m runner track RUN_DIR [RUN_DIR ...] [tracker=NAME[,NAME]] [--again]

Send what is in run folders (or folders of runs, such as a sweep's) to trackers: what a tracker that was down has
missed, or runs that had none. Without tracker= each run goes to the trackers of its own configuration.
--again sends everything once more, to runs opened anew."""


def main(arguments: Sequence[str]) -> int:
    """Send; returns the exit status: 1 where a tracker could not be reached.

    Raises:
        RequestError: for folders without runs, unknown trackers, missing packages or credentials.
    """
    names = [name for text in arguments if text.startswith("tracker=") for name in _names(text)]
    folders = [Path(text) for text in arguments if "=" not in text and not text.startswith("-")]
    unknown = [text for text in arguments if text.startswith("-") and text != "--again"]
    if unknown or not folders:
        raise RequestError(
            Problem(unknown[0] if unknown else "RUN_DIR", None, "name run folders", USAGE.split("\n")[0])
        )
    jobs = [(run_dir, name) for run_dir in _runs(folders) for name in names or _own(run_dir)]
    problems = {problem.line(): problem for name in {name for _, name in jobs} for problem in tracker(name).problems()}
    if problems:
        raise RequestError(problems.values())
    failed = False
    for run_dir, name in jobs:
        failed |= not _send(run_dir, name, "--again" in arguments)
    return EXIT_FAILED if failed else EXIT_COMPLETED


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.partition("=")[2].strip("[]").split(",") if name.strip()]


def _runs(folders: list[Path]) -> list[Path]:
    for folder in folders:
        if not folder.is_dir() or not find_run_folders([folder]):
            why = "there is no record.json in it or below"
            raise RequestError(Problem("RUN_DIR", folder, why, "give the folder of a run"))
    return list(find_run_folders(folders))


def _own(run_dir: Path) -> list[str]:
    found = chosen(read_config(run_dir))
    if not found:
        raise RequestError(Problem("RUN_DIR", run_dir, "this run has no tracker", "add tracker=NAME"))
    return found


def _send(run_dir: Path, name: str, again: bool) -> bool:
    sender = Sender(run_dir, name, tracker(name), again)
    if sender.up_to_date():
        print(f"{run_dir}: {name} has everything already")
        return True
    try:
        sender.send()
    except Exception as error:  # each library has its own  # noqa: BLE001
        print(f"{run_dir}: {name}: {problem_text(error).partition('; the run goes on')[0]}")
        return False
    print(f"{run_dir}: sent to {name} (run {sender.sent.id})")
    return True
