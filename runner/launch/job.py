"""One job: the rendered files turned into the ranks' environment, and torch elastic around the ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import render, rundir
from runner.compat import accelerate_launch
from runner.config.schema import RunConfig
from runner.launch.meeting import meeting_from_environment
from runner.launch.process_signals import leave_stopping_to_the_runner
from runner.launch.rank_process import rank_entry

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

FOREIGN = (
    "ACCELERATE_",
    "FSDP_",
    "TORCHELASTIC_",
    "MASTER_",
    "DEEPSPEED_",
    "PARALLELISM_CONFIG_",
)  # left over from another project or launcher
FOREIGN_EXACT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "DS_ACCELERATOR")


def scrubbed(environment: dict[str, str]) -> dict[str, str]:
    """The environment without variables by which another project could change this run."""
    return {
        name: value for name, value in environment.items() if not name.startswith(FOREIGN) and name not in FOREIGN_EXACT
    }


def run_job(run_dir: Path) -> dict[str, Any]:
    """Start the ranks of a run folder, wait for their end.

    Returns:
        `status` (completed, preempted, failed) and, for failed, `failures`: rank → exit code (negative: a signal).
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    config = rundir.read_config(run_dir)
    os.environ.update(rank_variables(config, run_dir))
    if config.launcher.max_restarts:
        # torch 2.13 keeps one store over restarts, in which new ranks find the addresses of the dead ones and wait for
        # them.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    try:
        results = elastic_launch(_launch_config(config, run_dir), rank_entry)(str(run_dir), os.getpid())
    except ChildFailedError as error:
        failures = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
        return {"status": "failed", "failures": failures}
    return {"status": "preempted" if "preempted" in results.values() else "completed"}


def rank_variables(config: RunConfig, run_dir: Path) -> dict[str, str]:
    """What `accelerate launch --config_file accelerate.yaml` would put into the ranks' environment, and our own."""
    variables = accelerate_launch.rank_variables(run_dir / rundir.ACCELERATE_FILE, "runner.train.worker", str(run_dir))
    return {**variables, **render.rank_environment(config), rundir.STARTED_BY_RUNNER: "1"}


def _launch_config(config: RunConfig, run_dir: Path) -> LaunchConfig:
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    ranks = config.launcher.num_processes
    assert isinstance(ranks, int)
    return LaunchConfig(
        **_rendezvous(run_dir, config.launcher.main_process_port or 0),
        nproc_per_node=ranks,
        max_restarts=config.launcher.max_restarts,
        monitor_interval=0.1,
        start_method=start_method(config),
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        shutdown_timeout=1,  # ranks ignore SIGTERM; after a second they are killed
        signals_to_handle="SIGQUIT",
    )


def _rendezvous(run_dir: Path, port: int) -> dict[str, Any]:
    """On one machine c10d, on the port asked for or a free one. Over several the static one: c10d compares their
    wall clocks, and clocks 15 s
    apart start a world of one node, or make the agents hang for 300 s at the end."""
    meeting = meeting_from_environment()
    if meeting is None:
        return {
            "min_nodes": 1,
            "max_nodes": 1,
            "run_id": f"{run_dir.name}-{os.getpid()}",
            "rdzv_backend": "c10d",
            "rdzv_endpoint": f"localhost:{port}",  # 0: a free one, chosen by the system
            "rdzv_configs": {"join_timeout": 120},
            "local_addr": "localhost",
        }
    return {
        "min_nodes": meeting.nodes,
        "max_nodes": meeting.nodes,
        "run_id": meeting.run_id,
        "rdzv_backend": "static",
        "rdzv_endpoint": meeting.endpoint,
        "rdzv_configs": {"rank": meeting.node_rank, "timeout": meeting.timeout_seconds},
        "local_addr": meeting.local_address,
    }


def start_method(config: RunConfig) -> str:
    """fork on CPU: the libraries are imported already. spawn on GPU: importing DeepSpeed may have touched the driver,
    which no fork survives.
    """
    if config.launcher.start_method != "auto":
        return config.launcher.start_method
    return "fork" if config.launcher.device == "cpu" else "spawn"


def in_own_session() -> None:
    """Leave the terminal's process group, and leave it to the runner how the run ends."""
    os.setsid()
    leave_stopping_to_the_runner()
