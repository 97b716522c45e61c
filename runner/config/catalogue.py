"""What can be chosen: recipes and models with their families, read from the YAML files."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import yaml

from runner import paths
from runner.config.yaml_shape import shape_problem
from runner.errors import Problem, RequestError
from runner.regular_files import read_regular

# Model and sample of each family that come with the runner and need no network.
BUNDLED = {
    "encoder": ("deberta_tiny", "paraphrase_sample"),
    "seq2seq": ("blenderbot_tiny", "dialogue_sample"),
    "causal_lm": ("gpt2_tiny", "stories_sample"),
}

BUNDLED_TOKENIZER = "bundled:"  # before the name of a tokenizer that comes with the runner


def option_files(group: str) -> dict[str, Path]:
    """Option name → file, the runner's own and those of `./conf`."""
    roots = [root for root in (paths.user_conf_dir(), paths.conf_dir()) if root is not None]
    return {path.stem: path for root in roots for path in sorted((root / group).glob("*.yaml"))}


def option_values(group: str, name: str) -> dict[str, Any]:
    """The values an option's file sets, as written.

    Raises:
        RequestError: where the file cannot be read.
    """
    values = read_yaml(option_files(group)[name])
    return values if isinstance(values, dict) else {}


def read_yaml(path: Path) -> object:
    """What a YAML file holds.

    Raises:
        RequestError: where it cannot be read, naming the line, and where its shape is none of a configuration's.
    """
    try:
        content = yaml.safe_load(read_regular(path).decode("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = "this file cannot be read as YAML: " + " ".join(str(error).split())
        raise RequestError(Problem(str(path), None, why, "fix the file")) from None
    except RecursionError:
        raise RequestError(Problem(str(path), None, "its values are nested too deep", "fix the file")) from None
    wrong = shape_problem(content)
    if wrong:
        raise RequestError(Problem(str(path), None, wrong, "fix the file"))
    return content


def recipe_settings(name: str) -> dict[str, Any]:
    """The `recipe` section of a recipe's file.

    Raises:
        RequestError: where the file cannot be read.
    """
    section = option_values("recipe", name).get("recipe")
    return section if isinstance(section, dict) else {}


def families(settings: dict[str, Any]) -> list[str]:
    """The model families that a recipe's settings name."""
    named = settings.get("families")
    return [str(family) for family in named] if isinstance(named, list) else []


def recipes_for(family: str) -> list[str]:
    """Recipes that train a model family; files that cannot be read offer nothing."""
    found = []
    for name in option_files("recipe"):
        with contextlib.suppress(RequestError):
            if family in families(recipe_settings(name)):
                found.append(name)
    return found
