"""What was tried: ledger.json, a table, and the result as a YAML that `+fitted=NAME` selects."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console

from runner.compose.overrides import parse_overrides
from runner.config import plan
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.fit.memory_budget import MemoryBudget
from runner.fit.trial import Trial
from runner.memory.amounts import mib
from runner.rundir.record import write_atomically

TRIAL_LOG_FILE = "ledger.json"
MIB = 2**20


def write_trial_log(folder: Path, budget: MemoryBudget, trials: list[Trial], result: dict[str, Any] | None) -> Path:
    """Write ledger.json; `result` is None while the search runs or where nothing fits."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / TRIAL_LOG_FILE
    content = {
        "budget_bytes": budget.bytes,
        "budget": budget.source,
        "result": result,
        "candidates": [trial.as_dict() for trial in trials],
    }
    write_atomically(path, json.dumps(content, indent=1) + "\n")
    return path


def print_trial_log(trials: list[Trial], budget: MemoryBudget, console: Console) -> None:
    """One aligned line a trial."""
    heads = ("candidate", "method", "micro × accum.", "predicted", "measured", "samples/s", "result")
    lines = [heads, *(_cells(trial) for trial in trials)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    console.print(f"budget     {mib(budget.bytes)} a rank ({budget.source.rstrip(',')})", highlight=False)
    for line in lines:
        console.print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip(),
            highlight=False,
            markup=False,
        )


def _cells(trial: Trial) -> tuple[str, ...]:
    return (
        trial.candidate,
        trial.method + (" + checkpointing" if trial.gradient_checkpointing else ""),
        f"{trial.micro_batch_size} × {trial.gradient_accumulation_steps}",
        _mib(trial.predicted_bytes),
        _mib(trial.measured_bytes),
        f"{trial.samples_per_second:.1f}" if trial.samples_per_second else "–",
        trial.status + (f": {' '.join(trial.reason.split())[:160]}" if trial.reason else ""),
    )


def _mib(size: int | None) -> str:
    return mib(size) if size else "–"


def kept_overrides(typed: list[str], replaced: set[str]) -> list[str]:
    """What was typed for the search and still holds for a run: not what the result replaces, and
    nothing of the search.
    """
    replaced = {*replaced, "train.global_batch_size"}
    return [
        item.input_line or ""
        for item in parse_overrides(typed)
        if item.key_or_group not in replaced and not item.key_or_group.startswith(("fit.", "hydra", "sweep."))
    ]


def save_choice(config: RunConfig, name: str, typed: list[str], said: str) -> Path:
    """Write conf/fitted/NAME.yaml in the current folder.

    Args:
        typed: overrides that belong to it but stand outside, for the comment.
        config: the configuration that fits, resolved, with its batch.
        said: where it comes from, for the comment.
    """
    path = Path.cwd() / "conf" / "fitted" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    train = config.train
    chosen = engine_of(config).choices(config)
    defaults = [f'  - override /{group}: "{option}"' for group, option in chosen.items()]
    lines = [
        "# @package _global_",
        *(f"# {line}" for line in said.splitlines()),
        f"#   python -m runner {shlex.join([*typed, f'+fitted={name}'])}",
        "defaults:",
        *defaults,
        "train:",
        f"  micro_batch_size: {train.micro_batch_size}",
        f"  gradient_accumulation_steps: {train.gradient_accumulation_steps}",
        "  global_batch_size: null",
        f"  gradient_checkpointing: {str(train.gradient_checkpointing).lower()}",
    ]
    write_atomically(path, "\n".join(lines) + "\n")
    return path


def default_name(config: RunConfig) -> str:
    """Model and method as a file name, e.g. `deberta_tiny_zero2`."""
    method = re.sub(r"[^a-z0-9]+", "_", plan.method(config).lower().replace("zero-", "zero")).strip("_")
    return f"{config.model.name}_{method}"
