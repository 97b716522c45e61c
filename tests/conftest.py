"""What tests share: the command as a user types it, and run folders to look into."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
CASES = ROOT / "tests" / "inputs"  # small files and models with one trap each
SMALL = (
    "dataset.max_train_rows=200",
    "dataset.max_validation_rows=40",
    "train.save_model=false",
)  # seconds instead of half a minute


@dataclass
class Result:
    """One finished command.

    Attributes:
        run_dir: where `hydra.run.dir` pointed; it may not exist.
    """

    returncode: int
    stdout: str
    stderr: str
    run_dir: Path

    @property
    def text(self) -> str:
        """Everything a user saw."""
        return self.stdout + self.stderr

    @property
    def record(self) -> dict[str, Any]:
        """The run's record."""
        content: dict[str, Any] = json.loads((self.run_dir / "record.json").read_text())
        return content

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The logged optimizer steps."""
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]


def cli_environment(**changes: str | None) -> dict[str, str]:
    """The environment of a user's command: the checkout importable, no tracker, no colours; None removes a variable."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"}
    for name, value in changes.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return environment


def command(
    *arguments: str,
    run_dir: Path,
    cwd: Path | None = None,
    timeout: float = 180,
    env: dict[str, str | None] | None = None,
) -> Result:
    """Run `python -m runner ARGUMENTS` to its end; the run folder is `run_dir`."""
    verb_has_run_dir = not arguments or arguments[0] not in ("report", "new", "doctor", "keys", "resume")
    where = [f'hydra.run.dir="{run_dir}"'] if verb_has_run_dir and "-m" not in arguments else []
    done = subprocess.run(
        [sys.executable, "-m", "runner", *arguments, *where],
        capture_output=True,
        text=True,
        cwd=cwd or ROOT,
        env=cli_environment(**(env or {})),
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    return Result(done.returncode, done.stdout, done.stderr, run_dir)


@pytest.fixture
def run_cli(tmp_path: Path) -> Any:
    """`run_cli(*overrides, cwd=…, timeout=…, env=…, run_dir=…)` → Result; the run folder is
    tmp_path/run unless given.
    """

    def run(*arguments: str, run_dir: Path | None = None, **options: Any) -> Result:
        return command(*arguments, run_dir=run_dir or tmp_path / "run", **options)

    return run


def needs_shared(path: Path) -> pytest.MarkDecorator:
    """Skip where the material next to the checkout is absent."""
    return pytest.mark.skipif(not path.exists(), reason=f"{path} is not here")


class Runs:
    """Many real runs from one test process: hosts are kept, so that a further run starts in a second."""

    def __init__(self) -> None:
        self._hosts: dict[Any, Any] = {}

    def __call__(self, *overrides: str, run_dir: Path, environment: dict[str, str] | None = None) -> Result:
        """Compose, check and execute one run on real ranks; the result's exit code is the command's."""
        from rich.console import Console

        from runner.compose import compose_run
        from runner.execution import Request, execute
        from runner.launch.process_signals import Stopping
        from runner.preflight.check import check

        composed = compose_run([*overrides, f'hydra.run.dir="{run_dir}"'])
        checked = check(composed)
        said = Console(file=io.StringIO(), width=200)
        ended = execute(
            Request(checked, composed.overrides, environment=environment or {}),
            self._host(checked.config),
            Stopping(),
            said,
        )
        return Result(ended.exit_code, said.file.getvalue(), str(ended.record.data.get("reason") or ""), run_dir)

    def resume(self, run_dir: Path, *overrides: str, environment: dict[str, str] | None = None) -> Result:
        """`python -m runner resume RUN_DIR OVERRIDES`, on a kept host."""
        from rich.console import Console

        from runner import rundir
        from runner.execution import run_attempt
        from runner.launch.process_signals import Stopping
        from runner.resume import find, open_run, prepare

        said = Console(file=io.StringIO(), width=200)
        record = open_run(run_dir)
        with rundir.held(run_dir):
            request = prepare(find(run_dir, record, list(overrides)), list(overrides), time.monotonic(), said.print)
            request.environment = environment or {}
            ended = run_attempt(request, self._host(request.checked.config), Stopping(), said)
        return Result(ended.exit_code, said.file.getvalue(), str(ended.record.data.get("reason") or ""), run_dir)

    def _host(self, config: Any) -> Any:
        from runner.launch.host_client import Host, host_key

        key = host_key(config, True)
        if key not in self._hosts:
            self._hosts[key] = Host(config, offline=True)
        return self._hosts[key]

    def close(self) -> None:
        """End all hosts."""
        for host in self._hosts.values():
            host.close()


@pytest.fixture(scope="session")
def real_run() -> Any:
    """`real_run(*overrides, run_dir=…)` → Result of a run on real ranks, fast after the first."""
    runs = Runs()
    yield runs
    runs.close()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A long case of a test that also has short ones is a further variant, which CI leaves to `make soak`."""
    quick = {_function(item) for item in items if item.get_closest_marker("soak") is None}
    for item in items:
        if item.get_closest_marker("soak") is not None and _function(item) in quick:
            item.add_marker(pytest.mark.variant)


def _function(item: pytest.Item) -> tuple[Path, str]:
    return item.path, getattr(item, "originalname", item.name)
