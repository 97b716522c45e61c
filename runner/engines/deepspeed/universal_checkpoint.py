"""ZeRO checkpoints on another number of ranks, through DeepSpeed's universal checkpoints."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

from runner.checkpoint.folders import Checkpoint, universal_folder
from runner.engines.base import ConversionStopped
from runner.errors import Problem, RequestError
from runner.launch.process_signals import die_with_parent

POLL_SECONDS = 0.1
FILES = "deepspeed"  # DeepSpeed's files inside a checkpoint


def convert(checkpoint: Checkpoint, log: Path, stop_asked: Callable[[], bool]) -> Path:
    """Write the universal form of a ZeRO checkpoint next to it; returns its folder.

    Raises:
        ConversionStopped: when `stop_asked` turned true meanwhile.
        RequestError: when DeepSpeed cannot convert it; its own words are in the log.
    """
    folder = universal_folder(checkpoint)
    shutil.rmtree(folder, ignore_errors=True)
    stage = checkpoint.manifest.zero_stage or 0
    command = [
        sys.executable,
        "-m",
        "deepspeed.checkpoint.ds_to_universal",
        "--num_extract_workers",
        "1",
        "--num_merge_workers",
        "1",
    ]
    command += ["--input_folder", str(checkpoint.path / FILES), "--output_folder", str(folder / FILES)]
    if stage < 3:
        command.append("--inject_missing_state")  # stages 1 and 2 leave out what only pipelines need
    log.parent.mkdir(exist_ok=True)
    with open(log, "w", encoding="utf-8") as file:
        status = _run(command, file, stop_asked)
    if status is None:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConversionStopped
    if status != 0 or not any((folder / FILES).glob("zero/*")):
        shutil.rmtree(folder, ignore_errors=True)
        raise RequestError(
            Problem(
                "launcher.num_processes",
                None,
                f"DeepSpeed could not convert the checkpoint of {checkpoint.manifest.world_size} ranks for another "
                f"number (its words are in {log})",
                f"resume with launcher.num_processes={checkpoint.manifest.world_size}",
            )
        )
    return folder


def _run(command: list[str], output: IO[str], stop_asked: Callable[[], bool]) -> int | None:
    """Run a command that ends with this process, away from the terminal's Ctrl-C; its exit status, None where it was
    stopped.
    """
    process = subprocess.Popen(
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    while not stop_asked():
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return None
