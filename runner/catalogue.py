"""What can be chosen: recipes and models with their families, read from the YAML files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from runner import places

# Model and sample of each family that come with the runner and need no network.
BUNDLED = {"encoder": ("deberta_tiny", "paraphrase_sample"), "seq2seq": ("blenderbot_tiny", "dialogue_sample"), "causal_lm": ("gpt2_tiny", "stories_sample")}

BUNDLED_TOKENIZER = "bundled:"  # before the name of a tokenizer that comes with the runner


def option_files(group: str) -> dict[str, Path]:
    """Option name → file, the runner's own and those of `./conf`."""
    roots = [root for root in (places.user_conf_dir(), places.conf_dir()) if root is not None]
    return {path.stem: path for root in roots for path in sorted((root / group).glob("*.yaml"))}


def option_values(group: str, name: str) -> dict[str, Any]:
    """The values an option's file sets, as written."""
    values = yaml.safe_load(option_files(group)[name].read_text(encoding="utf-8"))
    return values if isinstance(values, dict) else {}


def recipes_for(family: str) -> list[str]:
    """Recipes that train a model family."""
    return [name for name in option_files("recipe") if family in option_values("recipe", name).get("recipe", {}).get("families", [])]
