"""`job.sh`: what sbatch is given, readable and usable by hand."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from runner.config.schema import RunConfig

SCRIPT = "job.sh"
NO_REQUEUE = "no_requeue"  # a file in the run folder: somebody asked for the end, so it is not queued again
_FREE_PORT = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"


def options(config: RunConfig, run_dir: Path, name: str) -> dict[str, str | None]:
    """sbatch's options; None: a flag without a value."""
    cluster, ranks = config.cluster, int(config.launcher.num_processes)
    given: dict[str, str | None] = {
        "job-name": name,
        "nodes": str(config.launcher.num_nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(cluster.cpus_per_node or ranks),
        "output": str(run_dir / "slurm-%j.out"),
        "open-mode": "append",
        "requeue": None,
        # Without B: the job step gets it; with B: it would reach only this shell, and the run would not be warned.
        "signal": f"USR1@{cluster.signal_seconds}",
    }
    optional = {
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "time": str(cluster.time_minutes) if cluster.time_minutes else None,
        "gpus-per-node": str(cluster.gpus_per_node) if cluster.gpus_per_node else None,
        "mem": cluster.memory_per_node,
    }
    given |= {key: value for key, value in optional.items() if value}
    if cluster.exclusive:
        given["exclusive"] = None
    return {**given, **cluster.options}


def script(config: RunConfig, run_dir: Path) -> str:
    """The whole script."""
    python, folder = shlex.quote(sys.executable), shlex.quote(str(run_dir))
    header = [
        f"#SBATCH --{key}" + (f"={value}" if value is not None else "")
        for key, value in options(config, run_dir, f"runner-{run_dir.name}").items()
    ]
    lines = ["#!/bin/bash", *header, "", f"cd {shlex.quote(os.getcwd())} || exit 1", *config.cluster.setup]
    agent = f"{python} -m runner.launch.node {folder}"
    if config.launcher.num_nodes > 1:
        lines += [
            'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f'PORT=$(srun --nodes=1 --ntasks=1 --nodelist="$HEAD" {python} -c "{_FREE_PORT}") || exit 1',
        ]
        agent += ' "$HEAD:$PORT"'
    lines += [
        # The agents are job steps: warnings reach steps only. A node whose ranks fail must not end the others' reports.
        f"srun --kill-on-bad-exit=0 {agent}",
        "status=$?",
        "# 75: checkpointed and to be resumed; 138 and 143: the signal came before anything was imported.",
        f'case $status in 75|138|143) [ -e {folder}/{NO_REQUEUE} ] || scontrol requeue "$SLURM_JOB_ID" ;; esac',
        "exit $status",
    ]
    return "\n".join(lines) + "\n"
