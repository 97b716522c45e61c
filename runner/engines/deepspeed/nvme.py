"""NVMe offload: a folder that exists, can be written with direct access, and has space for what will be swapped."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from runner.config.schema import RunConfig
from runner.engines.deepspeed.config import offload_section, on_nvme
from runner.errors import Problem
from runner.memory.amounts import in_words
from runner.memory.model_size import parameter_count


def check_nvme(config: RunConfig) -> list[Problem]:
    """Problems of `offload.nvme_path` on this machine; a missing value is a contradiction, found elsewhere."""
    path = offload_section(config).nvme_path
    if not on_nvme(config) or not path:
        return []
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return [
            _problem(
                config,
                path,
                "there is no such folder" if not folder.exists() else "this is a file",
                f"mkdir -p {folder}, or ",
            )
        ]
    reason = _not_writable(folder)
    return [_problem(config, path, reason)] if reason else _room(config, folder)


def _problem(config: RunConfig, path: str, why: str, first: str = "") -> Problem:
    fix = (
        "fix nvme_path in launcher.config_file"
        if config.launcher.config_file
        else "set offload.nvme_path=DIR on a fast local disk"
    )
    return Problem("offload.nvme_path", path, why, first + fix)


def _not_writable(folder: Path) -> str | None:
    """Try it: permissions, read-only and special file systems have one thing in common.

    DeepSpeed opens its files with O_DIRECT.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".runner-") as file:
            try:
                os.close(os.open(file.name, os.O_RDWR | getattr(os, "O_DIRECT", 0)))
            except OSError as error:
                return (
                    f"this file system allows no direct access to a disk (O_DIRECT: {error.strerror}), which NVMe "
                    "offload needs"
                )
    except OSError as error:
        return f"cannot be written to ({error.strerror})"
    return None


def _room(config: RunConfig, folder: Path) -> list[Problem]:
    problems = []
    if offload_section(config).params == "nvme" and config.precision.name == "fp32":
        problems.append(
            Problem(
                "precision",
                "fp32",
                "DeepSpeed keeps fp32 parameters on NVMe as bf16, so the numbers differ from a run without it",
                "use precision=bf16 to say so, or offload=cpu",
                "warning",
            )
        )
    if offload_section(config).optimizer == "nvme" and config.mode == "train":
        why = "an interrupted run cannot be resumed: DeepSpeed restores an optimizer on NVMe wrongly, without a word"
        problems.append(Problem("offload.optimizer", "nvme", why, "where that matters use offload=cpu", "warning"))
    count, free = parameter_count(config.model), shutil.disk_usage(folder).free
    if count is None:
        return [
            *problems,
            Problem(
                "offload.nvme_path",
                folder,
                "its free space was not compared with the need: the model's size is known only when it is loaded",
                "",
                "notice",
            ),
        ]
    needed = swap_bytes(config, count)
    if needed > free:
        problems.append(
            _problem(
                config,
                str(folder),
                f"about {in_words(needed)} will be swapped for {count:,} parameters, free are {in_words(free)}",
            )
        )
    return problems


def swap_bytes(config: RunConfig, parameters: int) -> int:
    """Bytes on disk over all ranks of this machine: 12 a parameter for the optimizer, 2 for the weights."""
    optimizer = 12 if offload_section(config).optimizer == "nvme" else 0
    weights = 2 if offload_section(config).params == "nvme" else 0
    return parameters * (optimizer + weights) // max(1, config.launcher.num_nodes)
