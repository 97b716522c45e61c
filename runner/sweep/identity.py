"""What makes two cells the same: resolved configuration, code version, data fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from runner import __version__
from runner.compose.overrides import parse_overrides
from runner.config.schema import RunConfig
from runner.data.source import split_paths
from runner.preflight.check import Checked
from runner.rundir import provenance
from runner.sweep.imports import PACKAGE, imported, module_files

# What turns a configuration into numbers, with all that these import: the files of a run, the environment and libraries
# of its ranks, the ranks themselves. Engines and adapters are looked up by name, so all of theirs count.
DECIDES_NUMBERS = ("runner.render", "runner.launch.job", "runner.launch.preload", "runner.launch.rank_process")
_BY_NAME = ("engines", "adapters")
_NOT_THE_SAME_SWEEP = (
    "sweep.rerun",
    "sweep.on_error",
    "sweep.repeats",
    "note",
)  # may change when a sweep is gone on with


def cell_hash(checked: Checked, purpose: str = "") -> str:
    """Identity of a cell, 16 hexadecimal digits.

    Args:
        purpose: distinguished although the configuration is the same: a cell that is to run at its largest
            micro batch is identified by where that search starts.
    """
    parts = [provenance.config_hash(checked.config), code_version(checked), data_fingerprint(checked.config), purpose]
    return _digest(parts)


def sweep_id(arguments: Sequence[str]) -> str:
    """Identity of what was typed for a sweep, whatever the order: repeats of one cell are found by it."""
    typed = sorted(
        item.input_line or "" for item in parse_overrides(list(arguments)) if _tells_sweeps_apart(item.key_or_group)
    )
    return _digest(typed)


def _tells_sweeps_apart(key: str) -> bool:
    return key not in _NOT_THE_SAME_SWEEP and not key.startswith(("hydra.sweep.", "hydra.run."))


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def code_version(checked: Checked) -> str:
    """Hash of the code that decides a run's numbers: the modules that a rank imports, and the recipe's folder.

    The git commit alone would miss changes that are not committed, and would differ after a commit
    that touches no code.
    """
    recipes = sorted(Path(_module_file(checked)).parent.glob("*.py"))
    return _digest([__version__, _code_hash(tuple(recipes))])


@lru_cache(maxsize=8)
def _code_hash(recipes: tuple[Path, ...]) -> str:
    files = (path for room in _BY_NAME for path in (PACKAGE / room).rglob("*.py"))
    by_name = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files}
    own = module_files([*DECIDES_NUMBERS, *by_name, *(name for path in recipes for name in imported(path))])
    return _files_hash({f"runner/{path.relative_to(PACKAGE)}": path for path in own.values()}) + _files_hash(
        {path.name: path for path in recipes}
    )


def _module_file(checked: Checked) -> str:
    import inspect

    return inspect.getfile(type(checked.recipe))


def _files_hash(named: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(named.items()):
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def data_fingerprint(config: RunConfig) -> str:
    """Hash of the rows' files (local), or what names them (hub), and of a local folder of weights by size and time."""
    dataset = config.dataset
    if dataset.source == "hub":
        rows: Any = [dataset.hub_id, dataset.hub_config, dataset.revision]
    else:
        named = [split for split in ("train", "validation", "test") if getattr(dataset, split) is not None]
        rows = {split: [_content(path, *_stamp(path)) for path in split_paths(dataset, split)] for split in named}
    return _digest([rows, _weights(config)])


def _weights(config: RunConfig) -> list[Any]:
    if not config.model.path:
        return []
    folder = Path(config.model.path).expanduser()
    return [[path.name, *_stamp(path)] for path in sorted(folder.glob("*")) if path.is_file()]


def _stamp(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


@lru_cache(maxsize=64)
def _content(path: Path, _size: int, _changed: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
