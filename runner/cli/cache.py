"""`runner cache`: what lies in the caches, and how large it is; `runner cache clean` removes what the runner made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner import paths
from runner.config.schema import RunConfig
from runner.engines import every_engine
from runner.engines.base import CacheFolder
from runner.errors import EXIT_COMPLETED, Problem, RequestError
from runner.memory.model_size import in_words
from runner.preflight.output_folders import locations

USAGE = """usage: python -m runner cache [clean] [cache_dir=DIR]

Without a word: every cache of a run, its size and the free space of its volume.
clean: remove tokenised data, scans of files, estimates and compiled ops, which are made again when they are needed.
What was downloaded from the hub is left alone: `hf cache ls` and `hf cache rm` look after it."""


def _made() -> dict[str, CacheFolder]:
    """What the runner and its engines keep under the cache folder, by name."""
    return {
        "features": CacheFolder("tokenised data"),
        "scans": CacheFolder("scans of data files"),
        "estimates": CacheFolder("passes over model classes for estimates"),
        **{name: folder for engine in every_engine() for name, folder in engine.cache_folders().items()},
        "tmp": CacheFolder("temporary files"),
    }


def main(arguments: Sequence[str]) -> int:
    """Print the caches, or clean them; returns the exit status."""
    configured, words = None, []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key == "cache_dir":
            configured = value
        else:
            words.append(argument)
    if words not in ([], ["clean"]):
        raise RequestError(
            Problem(
                next((word for word in words if word != "clean"), "clean clean"),
                None,
                "cache knows only `clean` and cache_dir=DIR",
                "python -m runner cache --help",
            )
        )
    if words:
        clean(configured)
    else:
        show(configured)
    return EXIT_COMPLETED


def show(configured: str | None) -> None:
    """One line a place, with what the runner made in it."""
    for place in locations(RunConfig(cache_dir=configured)):
        size = "" if place.what == "temporary files" and configured is None else f"{in_words(_size(place.path))}, "
        print(f"{place.path}: {place.what}: {size}{in_words(place.free_bytes)} free on the volume {place.mount}")
        if place.path == paths.cache_dir(configured):
            for name, what in _made().items():
                if (place.path / name).is_dir():
                    print(f"  {name}: {what.words}: {in_words(_size(place.path / name))}")


def clean(configured: str | None) -> None:
    """Remove what the runner made; a folder in which an op is being built is left."""
    cache = paths.cache_dir(configured)
    for name, what in _made().items():
        folder = cache / name
        if not folder.is_dir():
            continue
        size = _size(folder)
        busy = what.remove(folder)
        left = f" ({busy} left: a build is going on there)" if busy else ""
        print(f"removed {folder}: {what.words}, {in_words(size)}{left}")


def _size(folder: Path) -> int:
    """Bytes of all files under a folder; files that vanish meanwhile count nothing, a file linked twice counts once."""
    seen: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        try:
            state = path.lstat()
        except OSError:
            continue
        if path.is_file() and not path.is_symlink():
            seen[(state.st_dev, state.st_ino)] = state.st_size
    return sum(seen.values())
