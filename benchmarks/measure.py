"""Running commands as a user types them, with clocks that can be compared between processes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BASELINE = ROOT / "benchmarks" / "baseline"
LIMIT_SECONDS = 900


class BenchmarkError(RuntimeError):
    """A command that was to be measured failed; the text has the end of its output."""


@dataclass
class Done:
    """A finished command.

    Attributes:
        started: on the machine's monotonic clock, in seconds.
        seconds: wall time.
    """

    started: float
    seconds: float
    returncode: int
    output: str


@dataclass
class Bench:
    """What all parts share.

    Attributes:
        work: folder for runs, models and caches of this benchmark.
        quick: fewer and smaller measurements, to try the harness.
        threads: CPU threads a rank, for the runner and the baseline alike.
        last_run: folder of the last run by the runner.
    """

    work: Path
    quick: bool
    threads: int
    ranks: int = 2
    last_run: Path = Path()
    _runs: int = 0

    def rounds(self, full: int) -> int:
        """How often to measure."""
        return 1 if self.quick else full

    def environment(self, **more: str) -> dict[str, str]:
        """The same for the runner and the baseline: offline, this checkout's code, their caches in `work`."""
        own = {
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(self.work / "datasets_cache"),
            "XDG_CACHE_HOME": str(self.work / "cache"),
            "COLUMNS": "160",
        }
        return {**os.environ, **own, **more}

    def run(self, command: list[str], may_fail: bool = False, **variables: str) -> Done:
        """Run a command to its end.

        Raises:
            BenchmarkError: when it fails, unless it may.
        """
        started = time.monotonic()
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=self.environment(**variables),
            cwd=self.work,
            timeout=LIMIT_SECONDS,
            stdin=subprocess.DEVNULL,
        )
        seconds = time.monotonic() - started
        if done.returncode and not may_fail:
            raise BenchmarkError(
                f"{shlex.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
            )
        return Done(started, seconds, done.returncode, done.stdout + done.stderr)

    def runner(self, *arguments: str) -> tuple[Done, dict[str, Any]]:
        """One run by the runner; returns the finished command and the record."""
        self._runs += 1
        folder = self.work / "runs" / f"{os.getpid()}-{self._runs:04}"
        done = self.run([*runner_command(*arguments), f'hydra.run.dir="{folder}"'])
        self.last_run = folder
        return done, json.loads((folder / "record.json").read_text())

    def launch(self, script: str, *arguments: str, ranks: int | None = None) -> tuple[Done, dict[str, Any]]:
        """One run of a baseline script under `accelerate launch`; returns the finished command and the script's
        figures.
        """
        path = self.work / "figures.json"
        path.unlink(missing_ok=True)
        command = [*launch_command(ranks or self.ranks), str(BASELINE / script), *arguments, "--figures", str(path)]
        # About one run in ten aborts in the libraries' clean-up, with all its work done: what counts is that it wrote
        # its figures.
        done = self.run(command, may_fail=True, DS_ACCELERATOR="cpu", OMP_NUM_THREADS=str(self.threads))
        if not path.exists():
            raise BenchmarkError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.output[-3000:]}")
        figures = json.loads(path.read_text())
        if figures["world_size"] != (ranks or self.ranks) or figures["launcher"] != "DEEPSPEED":
            raise BenchmarkError(
                f"the baseline did not run as asked: {figures['world_size']} ranks, {figures['launcher']}"
            )
        return done, figures


def runner_command(*arguments: str) -> list[str]:
    """`python -m runner …` with this interpreter."""
    return [sys.executable, "-m", "runner", *arguments]


def launch_command(ranks: int) -> list[str]:
    """`accelerate launch …` of this interpreter's environment, on a free port."""
    program = Path(sys.executable).with_name("accelerate")
    accelerate = str(program) if program.exists() else shutil.which("accelerate") or "accelerate"
    return [
        accelerate,
        "launch",
        "--config_file",
        str(BASELINE / "deepspeed_zero2.yaml"),
        "--num_processes",
        str(ranks),
        "--main_process_port",
        "0",
    ]


def typed(command: list[str]) -> str:
    """A command as a reader would type it, without this machine's folders."""
    names = {sys.executable: "python", str(Path(sys.executable).with_name("accelerate")): "accelerate"}
    return shlex.join([names.get(part, part) for part in command]).replace(str(ROOT) + "/", "")


def first_step_seconds(done: Done, record: dict[str, Any]) -> float:
    """From the start of the command (its interpreter included) to the end of the first optimizer step."""
    return float(record["runner"]["started_monotonic"]) + float(record["time_to_first_step_seconds"]) - done.started


def step_seconds(folder: Path, step: int, done: Done, record: dict[str, Any]) -> float:
    """From the start of the command to the end of an optimizer step that was logged."""
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    elapsed = next(float(line["elapsed_seconds"]) for line in lines if line["step"] == step)
    return float(record["runner"]["started_monotonic"]) + elapsed - done.started
