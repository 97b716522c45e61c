"""Where the ranks of a run meet: torch elastic's rendezvous, on one machine or over several."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

VARIABLE = "RUNNER_MEETING"


@dataclass(frozen=True)
class Meeting:
    """One attempt's rendezvous over several machines.

    Attributes:
        nodes: machines.
        node_rank: this one.
        endpoint: HOST:PORT of the rendezvous on the head.
        run_id: the same on every node.
        local_address: of this node.
        timeout_seconds: longest wait for the other nodes' agents.
    """

    nodes: int
    node_rank: int
    endpoint: str
    run_id: str
    local_address: str
    timeout_seconds: int

    def variable(self) -> dict[str, str]:
        """For the job's environment."""
        return {VARIABLE: json.dumps(asdict(self))}


def meeting_from_environment() -> Meeting | None:
    """The rendezvous that the agent has prepared; None where the run stays on this machine."""
    text = os.environ.get(VARIABLE)
    return Meeting(**json.loads(text)) if text else None
