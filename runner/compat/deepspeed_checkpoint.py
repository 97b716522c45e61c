"""What saving and loading a DeepSpeed checkpoint takes that its engine has no arguments for.

Private: `DeepSpeedEngine._config.load_universal_checkpoint`, which is read from the JSON and would hold for the whole
run, where one load is meant; and `DeepSpeedEngine._copy_recovery_script`, which writes a script of the installed
package (`python -m deepspeed.utils.zero_to_fp32`) into every checkpoint folder, past the checkpoint engine that writes
the rest and knows what to do when the disk is full.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol, cast

CHECKED = {"deepspeed": ">=0.19,<0.20"}


class _Config(Protocol):
    load_universal_checkpoint: bool


class _Engine(Protocol):
    _config: _Config
    _copy_recovery_script: Callable[[str], None]


@contextlib.contextmanager
def reading_universal(engine: object, universal: bool) -> Iterator[None]:
    """Inside, `load_checkpoint` of the engine takes its files for universal ones, or for DeepSpeed's own."""
    config = cast(_Engine, engine)._config
    config.load_universal_checkpoint = universal
    try:
        yield
    finally:
        config.load_universal_checkpoint = False


@contextlib.contextmanager
def without_recovery_script(engine: object) -> Iterator[None]:
    """Inside, `save_checkpoint` of the engine writes no script."""
    private = cast(_Engine, engine)
    private._copy_recovery_script = lambda _path: None
    try:
        yield
    finally:
        del private._copy_recovery_script
