"""In a process of its own: a DeepSpeed JSON from standard input through DeepSpeed's classes; what
they refuse, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from pydantic_core import ErrorDetails

if TYPE_CHECKING:
    from deepspeed.runtime import config as deepspeed_config

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def refusals(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Keys that the installed DeepSpeed refuses: `key`, `value`, `why`.

    Batch numbers and `auto` are the runner's matter.
    """
    import logging

    logging.disable(logging.CRITICAL)
    from deepspeed.runtime.config import DeepSpeedConfig
    from pydantic import ValidationError

    plain = {**_without_auto(content), "train_batch_size": 1}
    for name in BATCH[1:]:
        plain.pop(name, None)
    try:
        config = DeepSpeedConfig(plain)
        _read_when_the_engine_starts(config)
    except ValidationError as error:
        return [_refusal(plain, error.title, item) for item in error.errors()]
    except Exception as error:  # noqa: BLE001 - whatever it dies of, a rank would die of it
        return [{"key": "", "value": None, "why": f"DeepSpeed refuses the file: {' '.join(str(error).split())[:300]}"}]
    return []


def _read_when_the_engine_starts(config: deepspeed_config.DeepSpeedConfig) -> None:
    """Names that DeepSpeed's configuration keeps as they are, and its engine then looks up.

    Raises:
        ValueError: as the engine would.
    """
    from deepspeed.runtime.config import DtypeEnum
    from deepspeed.utils.logging import log_levels

    if config.log_level is not None and config.log_level.lower() not in log_levels:
        raise ValueError(f"log_level={config.log_level} is not one of {', '.join(log_levels)}")
    if config.grad_accum_dtype is not None:
        DtypeEnum(config.grad_accum_dtype)


def _without_auto(node: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_auto(value) if isinstance(value, dict) else value
        for name, value in node.items()
        if value != "auto"
    }


def _refusal(content: dict[str, Any], title: str, item: ErrorDetails) -> dict[str, Any]:
    """DeepSpeed names the class; the block is the one that holds the key."""
    path = ".".join(map(str, item["loc"]))
    first = str(item["loc"][0]) if item["loc"] else ""
    holders = [name for name, block in content.items() if isinstance(block, dict) and first in block]
    like = title.removesuffix("Config").lower().removeprefix("deepspeed")
    named = [name for name in holders if name.replace("_", "").startswith(like[:5])] or holders
    why = item["msg"][0].lower() + item["msg"][1:]
    why = "DeepSpeed has no such key" if item["type"] == "extra_forbidden" else why
    return {"key": f"{named[0]}.{path}" if named else path, "value": str(item["input"]), "why": why}


if __name__ == "__main__":
    kept = os.dup(1)  # what DeepSpeed prints goes to standard error
    os.dup2(2, 1)
    with contextlib.redirect_stdout(sys.stderr):
        answer = refusals(json.load(sys.stdin))
    os.write(kept, (json.dumps(answer) + "\n").encode())
