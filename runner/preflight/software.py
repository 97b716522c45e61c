"""Packages, compilers and headers that a run needs, looked for without importing or starting them."""

from __future__ import annotations

import importlib.util
from typing import Any

from runner import metrics
from runner.config.schema import RunConfig
from runner.engines.deepspeed.ops import lacking, needed_ops
from runner.errors import Problem
from runner.recipe import Recipe

IMPORTED_AS = {"scikit-learn": "sklearn"}
SYSTEM_PACKAGES = {"g++": "g++", "ninja": "ninja-build", "libaio.h": "libaio-dev"}


def is_installed(module: str) -> bool:
    """Whether a top-level module can be found; nothing is imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def check_software(config: RunConfig, recipe: Recipe, user_json: dict[str, Any] | None) -> list[Problem]:
    """DeepSpeed, what its ops are built with, and the libraries behind the recipe's metrics."""
    problems = _metric_libraries(recipe)
    if config.launcher.name != "deepspeed":
        return problems
    if not is_installed("deepspeed"):
        return [
            *problems,
            Problem(
                "launcher",
                "deepspeed",
                "DeepSpeed is not installed",
                "pip install 'finetune-runner[deepspeed]', or use launcher=ddp",
            ),
        ]
    for op in needed_ops(config, user_json):
        problems += _op(op, config)
    return problems


def _op(op: str, config: RunConfig) -> list[Problem]:
    lacks = lacking(op, config.launcher.device)
    if not lacks:
        return []
    packages = " ".join(SYSTEM_PACKAGES[name] for name in lacks if name in SYSTEM_PACKAGES)
    fix = f"apt install {packages}" if packages else "install the CUDA toolkit"
    if op == "cpu_adam":
        fix += ", or keep torch's slower optimizer with offload.force_cpu_adam=false"
    elif op == "async_io":
        fix += ", or use offload=cpu"
    else:
        fix += ", or write torch_adam: true into launcher.config_file"
    return [
        Problem(
            "offload" if op != "fused_adam" else "optimizer.params",
            config.offload.name if op != "fused_adam" else None,
            f"DeepSpeed has to build {op}, which needs {' and '.join(lacks)}",
            fix,
        )
    ]


def _metric_libraries(recipe: Recipe) -> list[Problem]:
    """Metrics come from installed libraries only, never from the hub."""
    problems = []
    best = recipe.config.recipe.metric_for_best
    if recipe.metrics and best not in recipe.metrics:
        problems.append(
            Problem(
                "recipe.metric_for_best",
                best,
                f"this recipe scores {', '.join(recipe.metrics)}",
                f"use recipe.metric_for_best={recipe.metrics[0]}",
            )
        )
    for library in sorted({metrics.LIBRARIES[name] for name in recipe.metrics if name in metrics.LIBRARIES}):
        if not is_installed(IMPORTED_AS.get(library, library)):
            problems.append(
                Problem(
                    "recipe",
                    recipe.config.recipe.name,
                    f"its metrics are computed by {library}, which is not installed",
                    f"pip install {library}",
                )
            )
    return problems
