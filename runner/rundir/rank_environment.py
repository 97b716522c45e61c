"""How a rank was started: by the runner or by hand, for the first time or again."""

from __future__ import annotations

import os

STARTED_BY_RUNNER = "RUNNER_STARTED_RANK"


def started_by_runner() -> bool:
    """Whether this rank was started by the runner, not by hand."""
    return STARTED_BY_RUNNER in os.environ


def restart_count() -> int:
    """How often torch elastic has started this rank again within the present attempt."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
