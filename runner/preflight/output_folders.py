"""Folders the run writes to: not occupied, writable, and with space for what is known to come."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runner import paths, rundir
from runner.adapters import adapter_of
from runner.config.schema import RunConfig
from runner.errors import Problem, Severity
from runner.memory.amounts import in_words
from runner.memory.model_size import kept_checkpoints, parameter_count, state_bytes
from runner.preflight.assets import hub_cache, in_cache, needed_assets
from runner.rundir.record import FILE

LITTLE_FREE_BYTES = 2**30
_RENDERED = {rundir.CONFIG_FILE, rundir.ACCELERATE_FILE, rundir.DEEPSPEED_FILE, rundir.COMMAND_FILE}


@dataclass(frozen=True)
class Location:
    """A folder that something is written to; it need not exist yet."""

    what: str
    path: Path

    @property
    def present(self) -> Path:
        """The folder, or its nearest ancestor that exists; also a link that leads nowhere, or in a circle."""
        return next(path for path in (self.path, *self.path.parents) if os.path.lexists(path))

    @property
    def free_bytes(self) -> int:
        """Free space of the volume it lies on."""
        return shutil.disk_usage(self.present).free

    @property
    def mount(self) -> Path:
        """Where that volume is mounted."""
        present = self.present.resolve()
        return next((path for path in (present, *present.parents) if os.path.ismount(path)), Path("/"))

    @property
    def writable(self) -> bool:
        """Whether it could be made and written to."""
        return os.access(self.present, os.W_OK | os.X_OK)


def locations(config: RunConfig) -> list[Location]:
    """Every cache of a run, and where temporary files go."""
    return [
        Location("tokenised data and compiled ops", paths.cache_dir(config.cache_dir)),
        Location("models and data sets of the hub", hub_cache(config)),
        Location("temporary files", paths.temporary_dir(config.cache_dir)),
    ]


def check_places(config: RunConfig, run_dir: Path) -> list[Problem]:
    """Problems of the run folder and of the caches."""
    return occupied(run_dir) or _unwritable(config, run_dir) or _room(config, run_dir) + _little_free(config, run_dir)


def occupied(run_dir: Path) -> list[Problem]:
    """Whether the run folder holds another run, or files that are no run's."""
    problem: Callable[[str, str], Problem] = partial(Problem, "hydra.run.dir", run_dir)
    if (run_dir / FILE).exists():
        return [
            problem(
                "another run's record lies there",
                f"choose another folder, or resume it: python -m runner resume '{run_dir}'",
            )
        ]
    in_the_way = next(
        (path for path in (run_dir, *run_dir.parents) if os.path.lexists(path) and not path.is_dir()), None
    )
    if in_the_way is not None:
        return [
            problem(
                "this is a file" if in_the_way == run_dir else f"{in_the_way} is no folder", "choose another folder"
            )
        ]
    if run_dir.is_dir() and any(path.name not in _RENDERED for path in run_dir.iterdir()):
        return [problem("this folder holds other files", "choose an empty or a new folder")]
    return []


def _unwritable(config: RunConfig, run_dir: Path) -> list[Problem]:
    own = Location("", run_dir)
    problems = (
        []
        if own.writable
        else [Problem("hydra.run.dir", run_dir, f"{own.present} is not writable", "set hydra.run.dir=DIR")]
    )
    for place in locations(config):
        if place.path == hub_cache(config) and not _downloads(config):
            continue
        if not place.writable or (os.path.lexists(place.path) and not place.path.is_dir()):
            why = f"{place.present} is not {'writable' if place.present.is_dir() else 'a folder'}"
            problems.append(
                Problem(
                    "cache_dir", config.cache_dir, f"{place.what}: {why}", "set cache_dir=DIR (it moves all caches)"
                )
            )
    return problems


def _downloads(config: RunConfig) -> bool:
    return any(not asset.local and not in_cache(config, asset) for asset in needed_assets(config))


def _room(config: RunConfig, run_dir: Path) -> list[Problem]:
    """Checkpoints, the final model and a download, against the free space of their volumes."""
    count, kept = parameter_count(config.model), kept_checkpoints(config)
    if count is None:
        return []
    here, hub = Location("", run_dir), Location("", hub_cache(config))
    trained = adapter_of(config).trained_parameters(config, count)
    model = 4 * trained if config.mode == "train" and config.train.save_model else 0
    download = 4 * count if config.model.init == "pretrained" and _weights_come(config) else 0
    together = here.mount == hub.mount
    problems = []
    needed = kept * state_bytes(config, trained) + model + (download if together else 0)
    if needed > here.free_bytes:
        problems.append(_too_large(config, here, kept, state_bytes(config, trained), model, needed))
    if download > hub.free_bytes and not (problems and together):
        why = (
            f"the weights of {config.model.hub_id} (about {in_words(download)}) do not fit: free are "
            f"{in_words(hub.free_bytes)} on the volume {hub.mount}"
        )
        problems.append(
            Problem(
                "cache_dir",
                config.cache_dir,
                why,
                "set cache_dir=DIR on a larger disk (it moves all caches)",
                _severity(config),
            )
        )
    return problems


def _weights_come(config: RunConfig) -> bool:
    return any(
        asset.role == "weights" and not asset.local and not in_cache(config, asset) for asset in needed_assets(config)
    )


def _severity(config: RunConfig) -> Severity:
    return "error" if config.checkpoint.check_space else "warning"


def _too_large(config: RunConfig, here: Location, kept: int, state: int, model: int, needed: int) -> Problem:
    parts = [f"{kept} checkpoints of about {in_words(state)} (weights and optimizer states)"] if kept else []
    parts += [f"the final model of {in_words(model)}"] if model else []
    why = (
        f"{' and '.join(parts) or 'the weights to download'} need about {in_words(needed)}, free are "
        f"{in_words(here.free_bytes)} on the volume {here.mount}"
    )
    fewer = "checkpoint.keep_last=1, " if kept and config.checkpoint.keep_last > 1 else ""
    return Problem(
        "hydra.run.dir",
        here.path,
        why,
        f"set hydra.run.dir=DIR on a larger disk, {fewer}train.save_model=false, or start anyway with "
        "checkpoint.check_space=false",
        _severity(config),
    )


def _little_free(config: RunConfig, run_dir: Path) -> list[Problem]:
    """One warning for each volume that is nearly full, with everything that is written there."""
    volumes: dict[Path, list[Location]] = {}
    for place in [*locations(config), Location("this run", run_dir)]:
        if place.free_bytes < LITTLE_FREE_BYTES:
            volumes.setdefault(place.mount, []).append(place)
    problems = []
    for mount, found in volumes.items():
        listed = ", ".join(f"{place.what} ({place.path})" for place in found)
        caches = any(place.what != "this run" for place in found)
        key = "cache_dir" if caches else "hydra.run.dir"
        fix = (
            "set cache_dir=DIR on a larger disk (it moves all caches)"
            if caches
            else "set hydra.run.dir=DIR on a larger disk"
        )
        value = config.cache_dir if caches else run_dir
        problems.append(
            Problem(
                key,
                value,
                f"only {in_words(found[0].free_bytes)} free on the volume {mount}, where these are written: {listed}",
                fix,
                "warning",
            )
        )
    return problems
