"""A launcher and a sweeper of the runner's own as Hydra plugins, without a `hydra_plugins` package.

Hydra instantiates plugins of its own packages only, and a `hydra_plugins` package would be imported by every Hydra
application in the environment. So a module of the runner is made known under a name inside Hydra's package, when a
sweep starts. Private: the package `hydra._internal.core_plugins`, and its `BasicSweeper.split_arguments`, the product
of the values in Hydra's own order.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.plugin import Plugin

CHECKED = {"hydra-core": ">=1.3.2,<1.4"}
PLUGIN_PACKAGE = "hydra._internal.core_plugins.finetune_runner"


def register(module: str, plugins: Mapping[str, tuple[type[Plugin], dict[str, Any]]]) -> None:
    """Put plugins in the place of Hydra's `basic` ones, so that choosing another one needs nothing undone.

    Args:
        module: the module that defines them; each class has `__module__ = PLUGIN_PACKAGE`.
        plugins: group (`hydra/launcher`) → the class and its settings with their defaults.
    """
    sys.modules[PLUGIN_PACKAGE] = sys.modules[module]
    for group, (plugin, settings) in plugins.items():
        Plugins.instance().register(plugin)
        node = {"_target_": f"{PLUGIN_PACKAGE}.{plugin.__name__}", **settings}
        ConfigStore.instance().store(group=group, name="basic", node=node, provider="finetune-runner")


def combinations(overrides: list[Override]) -> list[list[list[str]]]:
    """Every combination of the overrides' values, in one batch, in Hydra's order."""
    batches: list[list[list[str]]] = BasicSweeper.split_arguments(overrides, None)
    return batches
