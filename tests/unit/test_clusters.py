"""Clusters without starting one: what is typed where, what differs between nodes, what sbatch is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner import clusters
from runner.clusters.nodes.facts import Facts, findings
from runner.clusters.nodes.place import place_of, split_address
from runner.clusters.nodes.ssh import hosts_of
from runner.clusters.slurm.agent import _bounded
from runner.clusters.slurm.cluster import Slurm
from runner.clusters.slurm.job_script import options, script
from runner.clusters.spark import Spark
from runner.clusters.spark.session import master_problem
from runner.compose import compose_run
from runner.config.schema import RunConfig
from runner.errors import RequestError
from runner.rundir.record import Record
from runner.rundir.requests import CHECKPOINT_AT, agree_on_step, agreed_on_step, evaluation_stopped, request_stop

VARIABLES = ("NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", "SKYPILOT_NODE_RANK", "SLURM_NODEID", "JOB_COMPLETION_INDEX",
             "MASTER_ADDR", "PET_MASTER_ADDR", "SKYPILOT_NODE_IPS")  # fmt: skip


def config_of(*overrides: str) -> RunConfig:
    return compose_run(list(overrides)).config


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}, (1, "a", 29400)),
        ({"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}, (0, "10.0.0.1", 29400)),
        ({"JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "job-0.svc"}, (1, "job-0.svc", 29400)),
    ],
)
def test_place_from_the_variables_of_other_launchers(
    variables: dict[str, str], place: tuple[int, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = place_of(config_of("cluster=nodes", "launcher.num_nodes=2"))
    assert (found.rank, found.host, found.port, found.nodes) == (*place, 2)


def test_a_place_that_is_not_known_or_out_of_range_is_told_at_once() -> None:
    with pytest.raises(RequestError) as told:
        place_of(config_of("cluster=nodes", "launcher.num_nodes=2"))
    assert [problem.key for problem in told.value.problems] == ["cluster.node_rank", "cluster.head"]
    with pytest.raises(RequestError, match=r"nodes are numbered from 0 to 1; use launcher.num_nodes=3"):
        place_of(config_of("cluster=nodes", "launcher.num_nodes=2", "cluster.node_rank=2", "cluster.head=a:1"))
    for wrong in ("a:", "a:0", "a:70000", ":1"):
        with pytest.raises(RequestError, match="this is no HOST:PORT"):
            split_address(wrong)


def test_a_head_that_every_machine_would_look_for_on_itself_is_refused() -> None:
    for head in ("127.0.0.1:29400", "localhost", "127.0.1.1:1234"):
        with pytest.raises(RequestError) as told:
            place_of(config_of("cluster=nodes", "launcher.num_nodes=2", "cluster.node_rank=0", f"cluster.head={head}"))
        assert str(told.value) == (
            f"error: cluster.head={head}: on every machine this is the machine itself; "
            "name the head as the others reach it: its host name or address"
        )
    place = place_of(config_of("cluster=nodes", "launcher.num_nodes=2", "cluster.node_rank=1", "cluster.head=node1"))
    assert (place.host, place.port) == ("node1", 29400)


def test_keys_of_another_cluster_are_errors() -> None:
    composed = compose_run(["cluster.partition=gpu", "cluster.join_timeout_seconds=9"])
    lines = [problem.line() for problem in clusters.of(composed.config).problems(composed.config, composed.explicit)]
    assert sorted(lines) == [
        "error: cluster.join_timeout_seconds: cluster=local does not read this key; it reads none; "
        "leave it out, or choose its cluster with cluster=nodes",
        "error: cluster.partition: cluster=local does not read this key; it reads none; "
        "leave it out, or choose its cluster with cluster=slurm",
    ]


def spark_problems(*overrides: str) -> list[str]:
    composed = compose_run(["cluster=spark", *overrides])
    return [problem.line() for problem in Spark().problems(composed.config, composed.explicit)]


def test_a_spark_run_is_refused_before_a_session_where_it_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyspark and Java are told to be there, or not: this machine may have either."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert spark_problems("launcher.max_restarts=1", "cluster.conf.spark.master=yarn", "cluster.time_minutes=3") == [
        "error: cluster.time_minutes: cluster=spark does not read this key; it reads cluster.conf, cluster.interface, "
        "cluster.join_timeout_seconds, cluster.local_mode, cluster.master, cluster.node_timeout_seconds; "
        "leave it out, or choose its cluster with cluster=slurm",
        "error: launcher.max_restarts=1: Spark's distributors do not start ranks again; "
        "leave it out, and resume the run",
        "error: cluster.conf.spark.master=yarn: the runner sets it; use cluster.master",
        "error: cluster=spark: it needs pyspark, which is not installed; "
        "pip install 'finetune-runner[spark]', or use cluster=local",
    ]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    (line,) = spark_problems()
    assert line == (
        "error: cluster=spark: Spark needs Java 17 or newer (no bin/java in JAVA_HOME=/nowhere); install a Java runtime"
    )
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    assert "unset SPARK_REMOTE" in spark_problems()[0]


def test_a_master_that_nobody_answers_for_is_told_at_once() -> None:
    told = [master_problem(text) for text in ("spark://127.0.0.1:1", "http://host:7077", "yarn", "local[2]")]
    assert [problem and problem.why.partition(" (")[0] for problem in told] == [
        "nobody answers there",
        "this is no master of Spark",
        None,
        None,
    ]


def test_findings_of_all_nodes_come_at_once_and_common_ones_once() -> None:
    common = {"key": "a", "value": 1, "why": "is wrong", "fix": "", "severity": "error"}
    own = {"key": "b", "value": 2, "why": "is missing", "fix": "", "severity": "error"}
    head = Facts("h0", {"train.seed": 42}, {"torch": "2.13.0"}, "c", "d", problems=[common])
    other = Facts("h1", {"train.seed": 7}, {"torch": "2.12.0"}, "x", "d", problems=[common, own])
    assert [problem.line() for problem in findings({0: head, 1: other})] == [
        "error: a=1: is wrong",
        "error: b=2: on node 1 (h1): is missing",
        "error: train.seed=7: on node 1 (h1); 42 on the head (h0); make them equal and start again on every node",
        "error: torch=2.12.0: on node 1 (h1); version 2.13.0 on the head (h0); "
        "make them equal and start again on every node",
        "error: code=x: on node 1 (h1); the runner's or the recipe's files are others on the head; "
        "make them equal and start again on every node",
    ]


def test_a_hostfile_of_deepspeed(tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text("# two\na slots=4\n\nb slots=4 # the second\n")
    assert hosts_of(config_of("cluster=nodes", f"cluster.hostfile={file}")) == ["a", "b"]
    file.write_text("a slots=4\nb slots=2\n")
    with pytest.raises(RequestError, match="different numbers of slots"):
        hosts_of(config_of("cluster=nodes", f"cluster.hostfile={file}"))


def test_the_job_is_warned_as_a_step_and_requeued_on_75() -> None:
    config = Slurm().resolve(
        config_of(
            "cluster=slurm",
            "launcher.num_nodes=2",
            "cluster.gpus_per_node=4",
            "cluster.cpus_per_node=16",
            "cluster.time_minutes=90",
            "cluster.options.mail-type=END",
            'cluster.setup=["module load cuda"]',
        )
    )
    given = options(config, Path("/shared/run"), "name")
    assert (given["signal"], given["gpus-per-node"], given["cpus-per-task"]) == ("USR1@120", "4", "16")
    assert (given["time"], given["nodes"], given["exclusive"], given["mail-type"]) == ("90", "2", None, "END")
    assert (config.launcher.device, config.launcher.num_processes, config.launcher.omp_num_threads) == ("cuda", 4, 4)
    lines = script(config, Path("/shared/run")).splitlines()
    assert lines.index("module load cuda") < next(i for i, line in enumerate(lines) if line.startswith("srun --kill"))
    assert (
        'case $status in 75|138|143) [ -e /shared/run/no_requeue ] || scontrol requeue "$SLURM_JOB_ID" ;; esac' in lines
    )


def test_attempts_without_a_new_step_end_as_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two attempts in a row (cluster.max_requeues=2) after one that ended at step 3."""
    config = config_of("cluster=slurm")
    record = Record(tmp_path)
    statuses = []
    for steps in (3, 3, 5, 5, 5):
        record.update(optimizer_steps=steps)
        statuses.append(_bounded(tmp_path, config, 75))
    assert statuses == [75, 75, 75, 75, 1]
    assert json.loads((tmp_path / "cluster.json").read_text())["ends"] == [3, 3, 5, 5, 5]
    assert "came to no new optimizer step (still 5)" in capsys.readouterr().out


def test_flags_of_a_control_store_answer_as_files_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for address in (None, f"127.0.0.1:{store.port}"):
        if address is not None:
            monkeypatch.setenv("RUNNER_CONTROL_STORE", address)
            assert not agreed_on_step(tmp_path, CHECKPOINT_AT, 4)
        agree_on_step(tmp_path, CHECKPOINT_AT, 4)
        assert agreed_on_step(tmp_path, CHECKPOINT_AT, 4)
        assert not evaluation_stopped(tmp_path, 5, is_main=True)
        request_stop(tmp_path) if address is None else store.set("flag/stop", "1")
        assert not evaluation_stopped(tmp_path, 5, is_main=True)  # it names batch 6
        assert not evaluation_stopped(tmp_path, 5, is_main=False)
        assert evaluation_stopped(tmp_path, 6, is_main=False)
