"""Engines: who wraps the model and takes the optimizer step. One folder each; nobody outside asks which one it is.

A folder holds `engine.py` with a class named `Engine` (what is known without torch), `rank.py` (what runs in a rank)
and, where the engine has keys of its own, `config.py` with `SECTIONS`: section name → class.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from runner.parallel import mesh

if TYPE_CHECKING:
    from runner.config.fields import Section
    from runner.config.schema import RunConfig
    from runner.engines.base import Engine


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """Every engine's name, sorted: the folders of this package."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg))


@lru_cache(maxsize=1)
def sections() -> dict[str, type[Section]]:
    """Sections of the configuration that engines bring along."""
    found: dict[str, type[Section]] = {}
    for name in names():
        if importlib.util.find_spec(f"{__name__}.{name}.config") is not None:
            found |= importlib.import_module(f"{__name__}.{name}.config").SECTIONS
    return found


@cache
def engine_named(name: str) -> Engine:
    """The engine of this name."""
    engine: Engine = importlib.import_module(f"{__name__}.{name}.engine").Engine()
    return engine


def engine_of(config: RunConfig) -> Engine:
    """The engine that a configuration chooses."""
    return engine_named(config.launcher.name)


def every_engine() -> list[Engine]:
    """All engines, in the order in which tables list them."""
    return sorted(map(engine_named, names()), key=lambda engine: engine.order)


def label_of(config: Mapping[str, object]) -> str:
    """The name of a method in a comparison (`DDP`, `ZeRO-3 + CPU offload`), from a configuration as a record holds it.

    Records may be older or damaged: what names no method of ours is `unknown`.
    """
    launcher = config.get("launcher")
    name = launcher.get("name") if isinstance(launcher, Mapping) else None
    if not isinstance(name, str) or name not in names():
        return "unknown"
    degrees = config.get("parallel")
    return engine_named(name).label(config) + (mesh.words(degrees) if isinstance(degrees, Mapping) else "")
