"""Trials of `fit`: a mode that no override reaches, since it trains on the longest rows and
evaluates one batch only.
"""

from __future__ import annotations

from pathlib import Path

TRIAL_FILE = ".fit_trial"


def mark_trial(run_dir: Path) -> None:
    """Make the run of this folder a trial."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / TRIAL_FILE).touch()


def is_trial(run_dir: Path) -> bool:
    """Whether the run of this folder is a trial."""
    return (run_dir / TRIAL_FILE).exists()
