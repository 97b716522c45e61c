"""Which rank failed first, from what the ranks left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.launch.rank_process import is_out_of_memory
from runner.rundir.failure import first_failure
from runner.rundir.rank_errors import ended_marker

RESET = "[pair.cc:537] Read error [127.0.0.1]:10653: Connection reset by peer."


def leave(run_dir: Path, errors: dict[int, tuple[float, str]], beats: dict[int, float]) -> None:
    for folder in ("errors", "heartbeat"):
        (run_dir / folder).mkdir()
    for rank, (time, message) in errors.items():
        (run_dir / "errors" / f"rank_{rank}.json").write_text(
            json.dumps({"rank": rank, "time": time, "type": "RuntimeError", "message": message, "out_of_memory": False})
        )
    for rank, monotonic in beats.items():
        (run_dir / "heartbeat" / f"rank_{rank}.json").write_text(json.dumps({"monotonic": monotonic}))


@pytest.mark.parametrize(
    ("errors", "beats", "failures", "rank", "said"),
    [
        ({0: (1.0, RESET), 1: (2.0, "bad row 17")}, {0: 5.0, 1: 5.0}, {"0": 1}, 1, "bad row 17"),
        ({0: (1.0, RESET)}, {0: 5.0, 1: 5.0}, {"1": -9}, 1, "killed by SIGKILL"),
        ({0: (1.0, RESET)}, {0: 5.0, 1: 4.0}, {"0": 1}, 1, "killed by SIGKILL"),  # elastic saw rank 0 first
        (
            {0: (1.0, RESET)},
            {0: 5.0, 1: 5.5, 2: 4.0},
            {"0": 1},
            2,
            "killed by SIGKILL",
        ),  # rank 1 was ended with the run
        ({0: (1.0, RESET), 1: (1.1, RESET)}, {0: 5.0, 1: 5.0}, {"0": 1}, 0, "Connection reset"),
    ],
)
def test_the_first_failing_rank(errors, beats, failures, rank, said, tmp_path: Path):
    leave(tmp_path, errors, beats)
    found = first_failure(tmp_path, {"status": "failed", "failures": failures})
    assert found.rank == rank
    assert said in found.message


def test_a_rank_that_torch_elastic_ended_is_not_blamed(tmp_path: Path):
    """Rank 0's own error looks like the aftermath of a loss; rank 1 kept none because it was ended, and says so."""
    leave(tmp_path, {0: (1.0, "HTTPS: Connection reset by peer")}, {0: 5.0, 1: 4.0})
    ended_marker(tmp_path, 1).touch()
    found = first_failure(tmp_path, {"status": "failed", "failures": {"0": 1}})
    assert (found.rank, found.message) == (0, "rank 0: RuntimeError: HTTPS: Connection reset by peer")


def test_memory_that_nccl_did_not_get_is_a_cause_not_an_aftermath(tmp_path: Path):
    leave(tmp_path, {0: (2.0, "NCCL error: Failed to CUDA calloc async 8 bytes"), 1: (1.0, RESET)}, {0: 5.0, 1: 5.0})
    error = json.loads((tmp_path / "errors/rank_0.json").read_text())
    (tmp_path / "errors/rank_0.json").write_text(
        json.dumps({**error, "out_of_memory": is_out_of_memory(RuntimeError(error["message"]))})
    )
    found = first_failure(tmp_path, {"status": "failed", "failures": {"1": 1}})
    assert (found.rank, found.out_of_memory) == (0, True)


@pytest.mark.parametrize(
    ("message", "memory"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory", True),
        ("CUDA error: device-side assert triggered", False),
        ("CUBLAS_STATUS_EXECUTION_FAILED", False),
    ],
)
def test_what_counts_as_out_of_memory(message: str, memory: bool):
    assert is_out_of_memory(RuntimeError(message)) is memory
