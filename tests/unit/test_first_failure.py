"""Which rank failed first, from what the ranks left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.launch.outcome import first_failure

RESET = "[pair.cc:537] Read error [127.0.0.1]:10653: Connection reset by peer."


def leave(run_dir: Path, errors: dict[int, tuple[float, str]], beats: dict[int, float]) -> None:
    for folder in ("errors", "heartbeat"):
        (run_dir / folder).mkdir()
    for rank, (time, message) in errors.items():
        (run_dir / "errors" / f"rank_{rank}.json").write_text(json.dumps({"rank": rank, "time": time, "type": "RuntimeError", "message": message, "out_of_memory": False}))
    for rank, monotonic in beats.items():
        (run_dir / "heartbeat" / f"rank_{rank}.json").write_text(json.dumps({"monotonic": monotonic}))


@pytest.mark.parametrize(
    ("errors", "beats", "failures", "rank", "said"),
    [
        ({0: (1.0, RESET), 1: (2.0, "bad row 17")}, {0: 5.0, 1: 5.0}, {"0": 1}, 1, "bad row 17"),
        ({0: (1.0, RESET)}, {0: 5.0, 1: 5.0}, {"1": -9}, 1, "killed by SIGKILL"),
        ({0: (1.0, RESET)}, {0: 5.0, 1: 4.0}, {"0": 1}, 1, "killed by SIGKILL"),  # elastic saw rank 0 first
        ({0: (1.0, RESET)}, {0: 5.0, 1: 5.5, 2: 4.0}, {"0": 1}, 2, "killed by SIGKILL"),  # rank 1 was ended with the run
        ({0: (1.0, RESET), 1: (1.1, RESET)}, {0: 5.0, 1: 5.0}, {"0": 1}, 0, "Connection reset"),
    ],
)
def test_the_first_failing_rank(errors, beats, failures, rank, said, tmp_path: Path):
    leave(tmp_path, errors, beats)
    found = first_failure(tmp_path, {"status": "failed", "failures": failures})
    assert found.rank == rank
    assert said in found.message
