"""Blocks of the file that are no part of the run's own configuration: each is honoured, refused, or said to have no
effect.

Names and kinds of keys are compared with `known`; the values then go through DeepSpeed's own classes, in a process of
their own, because importing it takes seconds and must not happen here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from runner.engines.deepspeed.user_json.reading import as_written, get
from runner.errors import Problem, nearest
from runner.machine import is_installed

LIBRARY_SECONDS = 120.0
BLOCKS: dict[
    str, tuple[str, ...]
] = {  # keys of blocks that DeepSpeed reads by name and whose other keys it passes over
    "flops_profiler": (
        "enabled",
        "recompute_fwd_factor",
        "profile_step",
        "module_depth",
        "top_modules",
        "detailed",
        "output_file",
    ),
    "comms_logger": ("enabled", "verbose", "prof_all", "debug", "prof_ops"),
    "activation_checkpointing": (
        "partition_activations",
        "contiguous_memory_optimization",
        "cpu_checkpointing",
        "number_checkpoints",
        "synchronize_checkpoint_boundary",
        "profile",
    ),
}
MONITORS = {  # block → package it imports
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "comet": "comet_ml",
}
_PARALLEL = "a run here is data parallel only: every rank would have other rows than plan and record say"
REFUSED_WHEN_ENABLED = {
    "autotuning.enabled": (
        "it belongs to DeepSpeed's own launcher, which starts runs by itself",
        "remove it, and search with `python -m runner fit`",
    ),
    "hybrid_engine.enabled": ("it is for generation between training steps (RLHF), which no recipe does", "remove it"),
    "data_efficiency.enabled": ("it changes which rows a step sees, beside plan and record", "remove it"),
    "weight_quantization.quantize_weights": ("it changes the weights that are trained", "remove it"),
}
WITHOUT_EFFECT = {
    "activation_checkpointing": (
        "models of transformers do not read this block",
        "use train.gradient_checkpointing=true to recompute activations",
    ),
    "compile": ("the runner never calls engine.compile()", "remove the block"),
    "autotuning": ("only DeepSpeed's own launcher reads this block", "remove the block"),
    "hybrid_engine": ("it is not enabled", "remove the block"),
    "data_efficiency": ("it is not enabled", "remove the block"),
}
CHECKED_BY_LIBRARY = (
    *BLOCKS,
    *MONITORS,
    *WITHOUT_EFFECT,
    "csv_monitor",
    "checkpoint",
    "tensor_parallel",
    "expert_parallel",
    "data_types",
    "weight_quantization",
    "datastates",
    "timers",
    "pipeline",
    "monitor_config",
    "zenflow",
    "aio",
    "communication_data_type",
    "seq_parallel_communication_data_type",
    "gradient_allreduce_op",
    "log_level",
)


def check_other_blocks(content: dict[str, Any], file: str, library: bool = True) -> list[Problem]:
    """All problems and notices of the blocks beside optimizer, scheduler, ZeRO and number formats.

    Args:
        file: the file's name, for what has no effect.
        library: whether DeepSpeed's own classes are asked, too (some seconds, in another process).
    """
    problems = _parallel(content) + _misspelt(content) + _monitors(content)
    problems += [
        Problem(path, True, why, f"{fix} from launcher.config_file" if fix == "remove it" else fix)
        for path, (why, fix) in REFUSED_WHEN_ENABLED.items()
        if get(content, path) is True
    ]
    if library and not problems and any(content.get(name) for name in CHECKED_BY_LIBRARY):
        problems += library_problems(content)
    if problems:
        return problems
    return [
        Problem(name, None, f"this block of {file} has no effect: {why}", fix, "notice")
        for name, (why, fix) in WITHOUT_EFFECT.items()
        if content.get(name)
    ]


def _misspelt(content: dict[str, Any]) -> list[Problem]:
    problems = []
    for block, known in BLOCKS.items():
        for key in content.get(block) or {}:
            if key not in known:
                near = nearest(key, known)
                fix = f"did you mean {near}?" if near else f"it has {', '.join(known)}"
                problems.append(Problem(f"{block}.{key}", None, "DeepSpeed passes over this key", fix))
    return problems


def _parallel(content: dict[str, Any]) -> list[Problem]:
    problems = []
    length = content.get("sequence_parallel_size")
    if isinstance(length, int) and length > 1:
        problems.append(Problem("sequence_parallel_size", length, _PARALLEL, "remove it from launcher.config_file"))
    for block in ("tensor_parallel", "expert_parallel"):
        asked = content.get(block) or {}
        if any(value not in (False, None, 0, 1) for value in asked.values()):
            problems.append(Problem(block, as_written(asked), _PARALLEL, "remove it from launcher.config_file"))
    return problems


def _monitors(content: dict[str, Any]) -> list[Problem]:
    """A monitor whose package is missing, or whose folder cannot be written to, would end every rank."""
    problems = []
    for block in (*MONITORS, "csv_monitor"):
        asked = content.get(block) or {}
        if asked.get("enabled") is not True:
            continue
        package = MONITORS.get(block)
        if package is not None and not is_installed(package):
            fix = f"pip install {package}, or remove it: the run's own metrics.jsonl has every step"
            problems.append(Problem(f"{block}.enabled", True, f"the package {package} is not installed", fix))
        folder = asked.get("output_path")
        if isinstance(folder, str) and folder and not _can_be_made(Path(folder)):
            problems.append(
                Problem(f"{block}.output_path", folder, "this folder cannot be written to", "set another folder")
            )
    return problems


def _can_be_made(folder: Path) -> bool:
    """Tried in the nearest folder that exists: permission bits say nothing to root, nor of a read-only disk."""
    try:
        present = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryDirectory(dir=present):
            return True
    except OSError:
        return False


def library_problems(content: dict[str, Any]) -> list[Problem]:
    """What the installed DeepSpeed says of the file, one problem a key; none where it cannot be asked in time."""
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "runner.engines.deepspeed.user_json.library_check"]
    try:
        answer = subprocess.run(
            command,
            input=json.dumps(content),
            capture_output=True,
            text=True,
            timeout=LIBRARY_SECONDS,
            env=environment,
            check=False,
        )
        found = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return []  # the ranks ask it again
    return [
        Problem(item["key"] or "launcher.config_file", item["value"], item["why"], "fix launcher.config_file")
        for item in found
    ]
