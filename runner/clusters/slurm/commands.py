"""Slurm's own commands; never sacct, which needs accounting."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from runner.errors import Problem, RequestError

NEEDED = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")
SECONDS = 60.0


def missing() -> list[str]:
    """Commands that are not on PATH."""
    return [name for name in NEEDED if shutil.which(name) is None]


def answer(*words: str) -> str | None:
    """What a command prints; None where it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def partitions() -> list[str] | None:
    """Names of the partitions; None where the controller does not answer."""
    said = answer("sinfo", "-h", "-o", "%R")
    return None if said is None else sorted(set(said.split()))


def submit(script: Path) -> int:
    """Submit a script; returns the job's number.

    Raises:
        RequestError: with sbatch's own words.
    """
    done = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise RequestError(
            Problem("cluster", "slurm", f"sbatch refuses the job ({said})", "change the option of Slurm that it names")
        )
    return int(done.stdout.strip().partition(";")[0])


def job_state(job: int) -> str | None:
    """PENDING, RUNNING, … ; None where Slurm has forgotten the job, or it has ended."""
    said = answer("squeue", "-h", "-j", str(job), "-o", "%T")
    return said.split()[0] if said else None
