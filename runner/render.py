"""Configuration → accelerate YAML, the engine's own files and the command that runs the same thing by hand.

What is written here is what runs: the runner's own ranks read these files and nothing else. Every value is
a number or a word that holds; no `auto` is left.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from runner import machine, paths, rundir
from runner.config import plan
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.engines.base import EngineFile
from runner.rundir.record import write_atomically

# How often a thread of GNU OpenMP looks for its next work before it sleeps. Left alone it looks for milliseconds,
# which halts every process on the machine once there are more threads than cores. 1,000 looks last about as long as
# falling asleep and waking does, so that a wait costs at most twice what it must (benchmarks/threads.md).
SPIN_COUNT = "1000"
_WAIT_VARIABLES = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}  # where the user has set one of them, it holds


def accelerate_config(config: RunConfig, run_dir: Path) -> dict[str, Any]:
    """The complete accelerate YAML."""
    ranks = plan.world_size(config)
    rendered: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "machine_rank": 0,
        "main_process_port": config.launcher.main_process_port or 0,  # 0: a free one
        "main_training_function": "main",
        "num_machines": config.launcher.num_nodes,
        "num_processes": ranks,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,  # on CPU, too: with true accelerate starts one process, whatever num_processes says
    }
    if config.launcher.num_nodes > 1:
        # By hand: --machine_rank and --main_process_ip on each machine. Never accelerate's pdsh launcher, which writes
        # every environment variable into a file that anyone can read.
        rendered["main_process_ip"] = (config.cluster.head or "localhost").rpartition(":")[0] or "localhost"
    if config.launcher.device == "cuda":
        rendered["gpu_ids"] = config.launcher.gpu_ids
    return rendered | engine_of(config).accelerate_section(config, run_dir, ranks)


def rank_environment(config: RunConfig) -> dict[str, str]:
    """Environment variables that ranks need besides the rendered files."""
    cache = paths.cache_dir(config.cache_dir)
    variables = {
        "OMP_NUM_THREADS": str(config.launcher.omp_num_threads),
        "TOKENIZERS_PARALLELISM": "false",  # ranks fork; the tokenizer's threads would not survive it
    }
    if not _WAIT_VARIABLES & set(os.environ):
        variables["GOMP_SPINCOUNT"] = SPIN_COUNT
    if config.launcher.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""  # accelerate under DeepSpeed takes a GPU wherever torch sees one
    elif machine.lacks_peer_access(machine.visible_devices(config.launcher.gpu_ids)):
        wanted = {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
        variables |= {name: value for name, value in wanted.items() if name not in os.environ}
    variables |= engine_of(config).environment(config)
    if config.cache_dir:
        variables |= paths.cache_variables(cache)
    return variables


def by_hand_command(config: RunConfig, run_dir: Path) -> str:
    """The one line that runs the same thing with `accelerate launch`."""
    own = Path(sys.executable).with_name("accelerate")
    program = "accelerate" if shutil.which("accelerate") == str(own) or not own.exists() else str(own)
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in rank_environment(config).items())
    launch = f"{shlex.quote(program)} launch --config_file {shlex.quote(str(run_dir / rundir.ACCELERATE_FILE))}"
    return f"{variables} {launch} -m runner.train.worker {shlex.quote(str(run_dir))}"


def common_files(config: RunConfig, run_dir: Path) -> dict[str, str]:
    """The files that every engine's runs have, name → text."""
    plain = config.model_dump(mode="json")
    return {
        rundir.CONFIG_FILE: yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=10_000),
        rundir.ACCELERATE_FILE: yaml.safe_dump(accelerate_config(config, run_dir), allow_unicode=True),
        rundir.COMMAND_FILE: by_hand_command(config, run_dir) + "\n",
    }


def render(
    config: RunConfig, run_dir: Path, total_steps: int | None, own_file: EngineFile | None = None
) -> dict[str, str]:
    """All files of a run, name → text; `own_file` is a user's file for the engine, completed from the configuration."""
    return common_files(config, run_dir) | engine_of(config).files(config, run_dir, total_steps, own_file)


def write(files: dict[str, str], run_dir: Path) -> None:
    """Write the files into the run folder, which is made where it is missing."""
    os.makedirs(run_dir, exist_ok=True)
    for name, text in files.items():
        write_atomically(run_dir / name, text)
