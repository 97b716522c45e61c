"""`runner cache`: what lies in the caches, and how large it is; `clean` and `prune` remove what the runner made."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runner import paths
from runner.config.schema import RunConfig
from runner.errors import EXIT_COMPLETED, Problem, RequestError
from runner.made_cache import made, prune, size_of
from runner.memory.amounts import in_words, parse_bytes
from runner.preflight.output_folders import locations

USAGE = """usage: python -m runner cache [clean | prune [older_than=30d] [max_size=20GiB]] [cache_dir=DIR]

Without a word: every cache of a run, its size and the free space of its volume.
clean: remove tokenised data, scans of files, estimates and compiled ops, which are made again when they are needed.
prune: remove of these what no run has used for a time (`90m`, `12h`, `30d`), then what was not used for longest until
the rest fits a size.
What was downloaded from the hub is left alone: `hf cache ls` and `hf cache rm` look after it."""
_KEYS = ("cache_dir", "older_than", "max_size")
_SECONDS = {"m": 60, "h": 3600, "d": 86400}


def main(arguments: Sequence[str]) -> int:
    """Print the caches, clean or prune them; returns the exit status.

    Raises:
        RequestError: for a word or a value that is none.
    """
    pairs = [argument.partition("=") for argument in arguments]
    keys = {key: value for key, equals, value in pairs if equals and key in _KEYS}
    words = [key + equals + value for key, equals, value in pairs if not (equals and key in _KEYS)]
    if words not in ([], ["clean"], ["prune"]):
        wrong = next((word for word in words if word not in ("clean", "prune")), " ".join(words))
        why = "cache knows `clean`, `prune` and cache_dir=DIR"
        raise RequestError(Problem(wrong, None, why, "python -m runner cache --help"))
    limits = sorted({"older_than", "max_size"} & set(keys))
    if (words == ["prune"]) != bool(limits):
        why = "cache prune needs older_than or max_size, which nothing else reads"
        fix = "python -m runner cache prune older_than=30d"
        raise RequestError(Problem(limits[0] if limits else "prune", keys.get(limits[0]) if limits else None, why, fix))
    configured = keys.get("cache_dir")
    if words == ["prune"]:
        prune_by(configured, keys)
    elif words:
        clean(configured)
    else:
        show(configured)
    return EXIT_COMPLETED


def prune_by(configured: str | None, limits: dict[str, str]) -> None:
    """One line for each entry that is removed."""
    older_than = _seconds(limits["older_than"]) if "older_than" in limits else None
    max_bytes = _bytes(limits["max_size"]) if "max_size" in limits else None
    freed = 0
    for entry, removed in prune(paths.cache_dir(configured), older_than, max_bytes):
        freed += entry.size if removed else 0
        print(f"{'removed' if removed else 'left (in use)'} {entry.path}: {in_words(entry.size)}")
    print(f"{in_words(freed)} freed in {paths.cache_dir(configured)}")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", text)
    if found is None:
        why = "this is no time: a number and m (minutes), h or d (days)"
        raise RequestError(Problem("older_than", text, why, "for example older_than=30d"))
    return float(found[1]) * _SECONDS[found[2]]


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise RequestError(Problem("max_size", text, str(error), "for example max_size=20GiB")) from None


def show(configured: str | None) -> None:
    """One line a place, with what the runner made in it."""
    for place in locations(RunConfig(cache_dir=configured)):
        size = "" if place.what == "temporary files" and configured is None else f"{in_words(size_of(place.path))}, "
        print(f"{place.path}: {place.what}: {size}{in_words(place.free_bytes)} free on the volume {place.mount}")
        if place.path == paths.cache_dir(configured):
            for name, what in made().items():
                if (place.path / name).is_dir():
                    print(f"  {name}: {what.words}: {in_words(size_of(place.path / name))}")


def clean(configured: str | None) -> None:
    """Remove what the runner made; a folder in which an op is being built is left."""
    cache = paths.cache_dir(configured)
    for name, what in made().items():
        folder = cache / name
        if not folder.is_dir():
            continue
        size = size_of(folder)
        busy = what.remove(folder)
        left = f" ({busy} left: a build is going on there)" if busy else ""
        print(f"removed {folder}: {what.words}, {in_words(size)}{left}")
