"""Where the runner's own files lie, and where it looks for a user's."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _shipped(folder: str) -> Path:
    """A folder of the project: next to the package in a checkout, inside it once installed."""
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


def temporary_dir(configured: str | None) -> Path:
    """Folder of temporary files: under `cache_dir` where that is set, else the system's."""
    return cache_dir(configured) / "tmp" if configured else Path(tempfile.gettempdir())


def cache_variables(cache: Path) -> dict[str, str]:
    """Environment variables that move the caches of all libraries under one folder; read when they are imported.

    Each library's own variable is set, too: one that a user exported for another disk would win otherwise.
    """
    hub = cache / "huggingface"
    variables = {
        "HF_HOME": str(hub),
        "HF_HUB_CACHE": str(hub / "hub"),
        "HF_DATASETS_CACHE": str(hub / "datasets"),
        "XDG_CACHE_HOME": str(cache),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "torchinductor"),
        "TMPDIR": str(cache / "tmp"),
    }
    token = hf_token_path()
    return variables | (
        {"HF_TOKEN_PATH": str(token)} if token.is_file() else {}
    )  # the token stays where `hf auth login` put it


def hf_home() -> Path:
    """HF_HOME, or its default."""
    return Path(
        os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    ).expanduser()


def hf_token_path() -> Path:
    """Where `hf auth login` keeps the token."""
    return Path(os.environ.get("HF_TOKEN_PATH") or hf_home() / "token").expanduser()


def make_temporary_dir(configured: str | None) -> None:
    """Make the folder of temporary files under `cache_dir`: a TMPDIR that does not exist is passed over silently."""
    if configured:
        with contextlib.suppress(OSError):  # the checks before a run say so in words
            temporary_dir(configured).mkdir(parents=True, exist_ok=True)
