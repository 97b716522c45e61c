"""Adapters: which part of a model is trained. One module each with a class `Adapter`; nobody outside asks which one it
is.

`base.py` says what the rest of the runner may ask; `config.py` holds the sections of the configuration; what needs
torch and peft is in `wrapping.py`, `folder.py` and `quantized.py`, imported when an adapter is at work.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.adapters.base import Adapter
    from runner.config.fields import Section
    from runner.config.schema import RunConfig

NAMES = ("none", "lora", "qlora", "dora")


def sections() -> dict[str, type[Section]]:
    """Sections of the configuration that adapters bring along."""
    from runner.adapters.config import SECTIONS

    return SECTIONS


@cache
def adapter_named(name: str) -> Adapter:
    """The adapter of this name."""
    adapter: Adapter = importlib.import_module(f"{__name__}.{name}").Adapter()
    return adapter


def adapter_of(config: RunConfig) -> Adapter:
    """The adapter that a configuration chooses."""
    from runner.adapters.config import adapter_section

    return adapter_named(adapter_section(config).name)


def every_adapter() -> list[Adapter]:
    """All of them."""
    return [adapter_named(name) for name in NAMES]
