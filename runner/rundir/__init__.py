"""A run folder: what is in it, and what the runner and its ranks tell each other through it.

Its vocabulary is used as `rundir.NAME`; its larger parts are modules: `record`, `failure`, `heartbeat`, `provenance`.
"""

from __future__ import annotations

from runner.rundir.lock import held
from runner.rundir.names import (
    ACCELERATE_FILE,
    COMMAND_FILE,
    CONFIG_FILE,
    DEEPSPEED_FILE,
    LOCK_FILE,
    LOGS,
    PREDICTION_FILE,
    by_hand_folder,
    log_of,
)
from runner.rundir.opening import command_start, memory_prediction, open_record, opening_record, this_process
from runner.rundir.rank_environment import STARTED_BY_RUNNER, restart_count, started_by_runner
from runner.rundir.requests import (
    CHECKPOINT_AT,
    Preempted,
    agree_on_step,
    agreed_on_step,
    clear_requests,
    evaluation_stopped,
    request_stop,
    stop_is_wanted,
    stop_requested,
)
from runner.rundir.saved_config import read_config, write_config

__all__ = [
    "ACCELERATE_FILE",
    "CHECKPOINT_AT",
    "COMMAND_FILE",
    "CONFIG_FILE",
    "DEEPSPEED_FILE",
    "LOCK_FILE",
    "LOGS",
    "PREDICTION_FILE",
    "STARTED_BY_RUNNER",
    "Preempted",
    "agree_on_step",
    "agreed_on_step",
    "by_hand_folder",
    "clear_requests",
    "command_start",
    "evaluation_stopped",
    "held",
    "log_of",
    "memory_prediction",
    "open_record",
    "opening_record",
    "read_config",
    "request_stop",
    "restart_count",
    "started_by_runner",
    "stop_is_wanted",
    "stop_requested",
    "this_process",
    "write_config",
]
