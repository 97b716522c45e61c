"""A model's file may set a recipe's options (`task.block_size`): where another recipe is chosen they are left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from runner.config.catalogue import option_files, option_values
from runner.config.schema import RunConfig
from runner.errors import RequestError
from runner.recipe import recipe_class


def without_foreign_options(config: RunConfig, chosen: Mapping[str, str], typed: Collection[str]) -> RunConfig:
    """The configuration without keys of `task` that only the chosen model's file sets and the recipe does not have."""
    model = chosen.get("model", "")
    if not config.task or model not in option_files("model"):
        return config
    try:
        given = option_values("model", model).get("task") or {}
        known = recipe_class(config.recipe.file).Options.model_fields if given else {}
    except RequestError:
        return config  # a broken file is another check's finding
    foreign = {name for name in given if known and name not in known and f"task.{name}" not in typed}
    config.task = {name: value for name, value in config.task.items() if name not in foreign}
    return config
