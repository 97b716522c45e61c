"""Where the runner's own files lie, and where it looks for a user's."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _shipped(folder: str) -> Path:
    """A folder of the project: beside the package in a checkout, inside it once installed."""
    installed = _PACKAGE / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder


def conf_dir() -> Path:
    """The runner's own Hydra groups."""
    return _shipped("conf")


def user_conf_dir() -> Path | None:
    """`./conf` of the current folder, when it is not the runner's own."""
    mine = Path.cwd() / "conf"
    return mine if mine.is_dir() and mine.resolve() != conf_dir().resolve() else None


def recipe_dirs() -> list[Path]:
    """Folders with recipe files, a user's before the runner's own."""
    dirs = [Path.cwd() / "recipes", _shipped("recipes")]
    return [path for path in dirs if path.is_dir()]


def samples_dir() -> Path:
    """The bundled, generated samples and their tokenizers."""
    return _PACKAGE / "samples"


def cache_dir(configured: str | None) -> Path:
    """Folder for what the runner itself caches: tokenised data, compiled ops, scans of files."""
    if configured:
        return Path(configured).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "finetune-runner"
