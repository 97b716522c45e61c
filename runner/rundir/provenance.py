"""Where a run comes from: configuration hash, code, package versions."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from runner.config.schema import RunConfig

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "deepspeed",
    "datasets",
    "evaluate",
    "hydra-core",
    "omegaconf",
    "tokenizers",
    "scikit-learn",
    "sacrebleu",
    "numpy",
)
NOT_IN_HASH = {"note", "sweep", "fit", "cluster", "tracker"}  # say nothing about what a run computes


def config_hash(config: RunConfig) -> str:
    """Hash of everything in the configuration that decides what a run computes."""
    plain = config.model_dump(mode="json", exclude=NOT_IN_HASH)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def code() -> dict[str, Any]:
    """Git commit of the current folder's repository, and whether its files were changed since."""
    commit = _git("rev-parse", "HEAD")
    return {
        "git_commit": commit,
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")) if commit else None,
    }


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=5, check=True, cwd=Path.cwd()
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def versions() -> dict[str, str]:
    """Installed versions of the packages that decide a run's numbers."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
