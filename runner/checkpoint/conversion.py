"""ZeRO checkpoints on another number of ranks, through DeepSpeed's universal checkpoints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from runner.checkpoint.folders import Checkpoint, universal_folder
from runner.errors import Problem, RequestError

FILES = "deepspeed"  # DeepSpeed's files inside a checkpoint


def convert(checkpoint: Checkpoint, log: Path) -> Path:
    """Write the universal form of a ZeRO checkpoint beside it; returns its folder.

    Raises:
        RequestError: when DeepSpeed cannot convert it; its own words are in the log.
    """
    folder = universal_folder(checkpoint)
    shutil.rmtree(folder, ignore_errors=True)
    stage = checkpoint.manifest.zero_stage or 0
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--num_extract_workers", "1", "--num_merge_workers", "1"]
    command += ["--input_folder", str(checkpoint.path / FILES), "--output_folder", str(folder / FILES)]
    if stage < 3:
        command.append("--inject_missing_state")  # stages 1 and 2 leave out what only pipelines need
    log.parent.mkdir(exist_ok=True)
    with open(log, "w", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "DS_ACCELERATOR": "cpu"}, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0 or not any((folder / FILES).glob("zero/*")):
        shutil.rmtree(folder, ignore_errors=True)
        raise RequestError(
            Problem(
                "launcher.num_processes",
                None,
                f"DeepSpeed could not convert the checkpoint of {checkpoint.manifest.world_size} ranks for another number (its words are in {log})",
                f"resume with launcher.num_processes={checkpoint.manifest.world_size}",
            )
        )
    return folder
