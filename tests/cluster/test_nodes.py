"""`cluster=nodes` by hand on two machines (network namespaces): what equals one machine, and how it ends when one
fails.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import PORT, OnNodes
from tests.conftest import ROOT, Result
from tests.interrupting import LAUNCHERS, SHORT, logged, numbers

ONE_EACH = ("launcher.num_processes=1", "launcher.omp_num_threads=1")
LONG = (*SHORT, "train.epochs=200")


@pytest.fixture(scope="module")
def on_one_machine(real_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run with two ranks on one machine, once for each launcher."""
    found: dict[str, Result] = {}

    def result(launcher: str) -> Result:
        if launcher not in found:
            run_dir = tmp_path_factory.mktemp(launcher) / "run"
            found[launcher] = real_run(
                *LAUNCHERS[launcher], *SHORT, "launcher.num_processes=2", "launcher.omp_num_threads=1", run_dir=run_dir
            )
        return found[launcher]

    return result


def result_in(run_dir: Path) -> Result:
    return Result(0, "", "", run_dir)


def wait_for_step(run_dir: Path, step: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 300
    while not any(line["step"] >= step for line in logged(run_dir)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)


def reason_of(run_dir: Path) -> tuple[str, str]:
    record = json.loads((run_dir / "record.json").read_text())
    return record["status"], record["reason"]


@pytest.mark.parametrize("launcher", ["ddp", "zero2", "zero3"])
def test_two_nodes_train_as_one_with_as_many_ranks(
    launcher: str, nodes: OnNodes, on_one_machine: Any, tmp_path: Path
) -> None:
    """Each node's own name resolves to 127.0.1.1, which gloo would publish."""
    run_dir = tmp_path / "run"
    ended = nodes.end(*nodes.both(run_dir, *LAUNCHERS[launcher], *SHORT, *ONE_EACH))
    assert [code for code, _ in ended] == [0, 0], ended
    assert numbers(result_in(run_dir)) == numbers(on_one_machine(launcher))
    record = result_in(run_dir).record
    assert (record["status"], record["world_size"], record["global_batch_size"]) == ("completed", 2, 32)


def test_stop_at_the_head_checkpoints_everywhere_and_the_resume_is_bit_equal(
    nodes: OnNodes, on_one_machine: Any, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    head, other = nodes.both(run_dir, *LAUNCHERS["zero2"], *SHORT, *ONE_EACH, "train.epochs=2")
    wait_for_step(run_dir, 2, head)
    subprocess.run(nodes.rig.command(1, "pkill", "-TERM", "-f", "cluster.node_rank=0"), check=True)
    assert [code for code, _ in nodes.end(head, other)] == [75, 75]
    assert reason_of(run_dir)[0] == "preempted"
    again = [nodes.start(rank + 1, "resume", str(run_dir), f"cluster.node_rank={rank}") for rank in (0, 1)]
    ended = nodes.end(*again)
    assert [code for code, _ in ended] == [0, 0], ended
    assert numbers(result_in(run_dir)) == numbers(on_one_machine("zero2"))


def test_what_differs_is_told_on_every_node_at_once(nodes: OnNodes, tmp_path: Path) -> None:
    common = (*LAUNCHERS["ddp"], *SHORT, *ONE_EACH, "launcher.num_nodes=2", "cluster=nodes")
    place = (f"cluster.head={nodes.rig.address(1)}:{PORT}", f"hydra.run.dir={tmp_path / 'run'}")
    head = nodes.start(1, *common, *place, "cluster.node_rank=0")
    other = nodes.start(2, *common, *place, "cluster.node_rank=1", "train.seed=7", "optimizer.lr=0.5")
    for code, text in nodes.end(head, other):
        assert code == 2, text
        assert "error: train.seed=7: on node 1 (node2); 42 on the head (node1)" in text
        assert "error: optimizer.lr=0.5: on node 1 (node2); 0.001 on the head (node1)" in text
    assert not (tmp_path / "run" / "record.json").exists()


def test_a_taken_port_a_node_that_never_comes_and_a_folder_of_ones_own(nodes: OnNodes, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    common = (*LAUNCHERS["ddp"], *SHORT, *ONE_EACH, "launcher.num_nodes=2", "cluster=nodes")
    place = (f"cluster.head={nodes.rig.address(1)}:{PORT}", f"hydra.run.dir={run_dir}", "cluster.node_rank=0")
    first = nodes.start(1, *common, *place, "cluster.join_timeout_seconds=25")
    time.sleep(12)
    ((code, text),) = nodes.end(nodes.start(1, *common, *place))
    assert (code, "is taken; use cluster.head=" in text) == (2, True), text
    ((code, text),) = nodes.end(first)
    assert (code, "error: launcher.num_nodes=2: node 1 did not come within 25 s" in text) == (2, True), text
    private = tmp_path / "private"
    private.mkdir()
    subprocess.run(nodes.rig.command(2, "mount", "-t", "tmpfs", "tmpfs", str(private)), check=True)
    for code, text in nodes.end(*nodes.both(private / "run", *LAUNCHERS["ddp"], *SHORT, *ONE_EACH)):
        assert code == 2, text
        assert "node 1 (node2) does not share this folder" in text
    alone = (*LAUNCHERS["ddp"], *SHORT, *ONE_EACH, "checkpoint.on_preemption=false", "train.max_steps=2")
    ended = nodes.end(*nodes.both(private / "run", *alone))
    assert [code for code, _ in ended] == [0, 0], ended
    assert (private / "run" / "logs" / "rank_1.log").exists()


def test_a_rank_or_a_node_that_dies_is_named_within_ten_seconds(nodes: OnNodes, tmp_path: Path) -> None:
    run_dir = tmp_path / "rank"
    head, other = nodes.both(run_dir, *LAUNCHERS["zero2"], *LONG, *ONE_EACH)
    wait_for_step(run_dir, 2, head)
    beat = json.loads((run_dir / "heartbeat" / "rank_1.json").read_text())
    subprocess.run(nodes.rig.command(2, "kill", "-9", str(beat["pid"])), check=True)
    ended = nodes.end(head, other, timeout=30)
    assert [code for code, _ in ended] == [1, 1], ended
    assert "rank 1 was killed by SIGKILL" in reason_of(run_dir)[1]
    run_dir = tmp_path / "node"
    head, other = nodes.both(run_dir, *LAUNCHERS["zero2"], *LONG, *ONE_EACH)
    wait_for_step(run_dir, 2, head)
    began = time.monotonic()
    nodes.rig.kill(2)
    ((code, text),) = nodes.end(head, timeout=40)
    assert (code, time.monotonic() - began < 20) == (1, True), text  # 10 s, and the load of other tests
    assert "node 1 (node2, rank 1) is gone" in reason_of(run_dir)[1]
    assert not [line for line in nodes.rig.processes(1) if "runner" in line]
    nodes.rig.restart(2)


def test_a_cable_that_is_out_and_a_head_that_is_killed_end_the_run(nodes: OnNodes, tmp_path: Path) -> None:
    run_dir = tmp_path / "cable"
    quick = "cluster.node_timeout_seconds=6"
    head, other = nodes.both(run_dir, *LAUNCHERS["ddp"], *LONG, *ONE_EACH, quick)
    wait_for_step(run_dir, 2, head)
    nodes.rig.cable(2, "down")
    began = time.monotonic()
    ended = nodes.end(head, other, timeout=60)
    nodes.rig.cable(2, "up")
    assert [code for code, _ in ended] == [1, 1], ended
    assert "node 1 (node2, rank 1) has been silent" in reason_of(run_dir)[1]
    assert "the head (10.77.0.1) is gone: it has been silent" in ended[1][1]
    assert time.monotonic() - began < 40
    run_dir = tmp_path / "killed"
    head, other = nodes.both(run_dir, *LAUNCHERS["ddp"], *LONG, *ONE_EACH, quick)
    wait_for_step(run_dir, 2, head)
    subprocess.run(nodes.rig.command(1, "pkill", "-KILL", "-f", "cluster.node_rank=0"), check=True)
    ((code, text),) = nodes.end(other, timeout=40)
    assert (code, "the head (10.77.0.1) is gone" in text) == (1, True), text
    assert not [line for line in nodes.rig.processes(2) if "runner" in line]
    nodes.end(head)


def test_the_pages_commands_are_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    assert "cluster.node_rank=1" in page
    assert signal.SIGUSR1.name in page


def test_two_ranks_on_each_of_two_nodes_with_clocks_a_day_apart(nodes: OnNodes, real_run: Any, tmp_path: Path) -> None:
    """CLOCK_MONOTONIC of the head is 100,000 s ahead: no figure of the record changes by it."""
    nodes.rig.kill(1)
    nodes.rig.restart(1, ("--time", "--monotonic", "100000", "--boottime", "100000"))
    run_dir = tmp_path / "run"
    two_each = ("launcher.num_processes=2", "launcher.omp_num_threads=1")
    ended = nodes.end(*nodes.both(run_dir, *LAUNCHERS["zero2"], *SHORT, *two_each))
    assert [code for code, _ in ended] == [0, 0], ended
    four = real_run(
        *LAUNCHERS["zero2"], *SHORT, "launcher.num_processes=4", "launcher.omp_num_threads=1", run_dir=tmp_path / "one"
    )
    assert numbers(result_in(run_dir)) == numbers(four)
    record = result_in(run_dir).record
    assert 0 < record["time_to_first_step_seconds"] < record["wall_seconds"] < 1000
    nodes.rig.kill(1)
    nodes.rig.restart(1)
