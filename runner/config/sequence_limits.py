"""How long a sequence a model takes, from the facts of its architecture; nothing is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner.config.inputs import ModelConfig
from runner.regular_files import read_regular

KEYS = ("max_position_embeddings", "n_positions")
WITHOUT_LIMIT = (
    "t5",
    "mt5",
    "umt5",
    "longt5",
    "switch_transformers",
)  # relative positions only; T5's n_positions is a figure of its training
OFFSET = {"roberta": 2, "xlm-roberta": 2, "camembert": 2}  # positions before the first token's


ADAPTER_FILE = "adapter_config.json"  # what peft writes beside an adapter's weights
ADAPTER_BASE = "base"  # folder inside an adapter's: the configuration of its model, and weights that lie nowhere else


def is_adapter_folder(path: str | Path | None) -> bool:
    """Whether a folder holds an adapter, and not a whole model."""
    return bool(path) and (Path(str(path)).expanduser() / ADAPTER_FILE).is_file()


def config_folder(path: str | Path) -> Path:
    """Where a model folder's config.json lies: in an adapter's folder one level below, since transformers takes a
    folder with both files for a whole model.
    """
    folder = Path(path).expanduser()
    return folder / ADAPTER_BASE if is_adapter_folder(folder) else folder


def architecture_facts(model: ModelConfig) -> dict[str, Any]:
    """The folder's config.json where weights or architecture come from a folder, else `model.config`."""
    if not model.path:
        return model.config
    try:
        facts = json.loads(read_regular(config_folder(model.path) / "config.json"))
    except (OSError, ValueError, RecursionError):
        return {}  # a missing or broken folder is another check's finding
    return facts if isinstance(facts, dict) else {}


def position_limit(facts: dict[str, Any]) -> int | None:
    """Tokens of the longest sequence, or None where the architecture sets no limit or the facts don't say.

    Args:
        facts: in the words of the transformers config class, `model_type` among them.
    """
    kind = facts.get("model_type")
    if kind in WITHOUT_LIMIT:
        return None
    known = next((facts[key] for key in KEYS if facts.get(key)), None)
    return int(known) - OFFSET.get(str(kind), 0) if known else None
