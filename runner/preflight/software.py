"""Packages, compilers and headers that a run needs, looked for without importing or starting them."""

from __future__ import annotations

from runner import metrics
from runner.adapters import adapter_of
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.engines.base import EngineFile
from runner.errors import Problem
from runner.machine import is_installed
from runner.preflight.optimizers import check_optimizer_package
from runner.recipe import Recipe


def check_software(config: RunConfig, recipe: Recipe, own_file: EngineFile | None) -> list[Problem]:
    """What engine, adapter and optimizer need, and the libraries behind the recipe's metrics."""
    engine, adapter = engine_of(config), adapter_of(config)
    own = engine.software_problems(config, own_file) + adapter.software_problems()
    return _metric_libraries(recipe) + check_optimizer_package(config) + own


def _metric_libraries(recipe: Recipe) -> list[Problem]:
    """Metrics come from installed libraries only, never from the hub."""
    problems = []
    for library in sorted({metrics.LIBRARIES[name] for name in recipe.metrics if name in metrics.LIBRARIES}):
        if not is_installed(library):
            problems.append(
                Problem(
                    "recipe",
                    recipe.config.recipe.name,
                    f"its metrics are computed by {library}, which is not installed",
                    f"pip install {library}",
                )
            )
    for library in recipe.libraries:
        if not is_installed(library.partition(".")[0]):
            why = f"its metrics are computed by {library}, which is not installed"
            problems.append(Problem("recipe", recipe.config.recipe.name, why, "pip install 'finetune-runner[tasks]'"))
    return problems
