"""Records in every state are read into rows; none makes the report fail."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from report_records import points, record, write_run
from rich.console import Console

from runner.machine import boot_id
from runner.memory.past_predictions import past_predictions
from runner.report.liveness import runner_liveness, this_host
from runner.report.metrics_log import elapsed_seconds, read_points
from runner.report.records import NoSuchFolder, find_run_folders, read_run, read_runs
from runner.report.tables import compare
from runner.report.terminal import print_comparison
from runner.sweep.history import earlier_cells

FIXTURES = Path(__file__).parent / "records"


def _runner(pid: int, create_time: float) -> dict[str, object]:
    return {"pid": pid, "create_time": create_time, "host": this_host(), "boot_id": boot_id()}


def _myself(**changes: object) -> dict[str, object]:
    me = psutil.Process()
    return {**_runner(me.pid, me.create_time()), **changes}


def test_version_1_with_half_of_its_keys_is_read(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, json.loads((FIXTURES / "version_1.json").read_text())))
    assert (run.run_id, run.status, run.method, run.metrics) == ("current-run", "preempted", "ZeRO-2", {})
    assert run.reason.startswith("SIGTERM after step 6")
    assert run.eval_seconds_per_epoch is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not valid JSON"),
        (b'{"schema_version": 1, "run', "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[1, 2]", "no JSON object"),
        (b"{}", "no schema_version"),
        (b'{"schema_version": true}', "no schema_version"),
        (b'{"schema_version": 2, "status": "completed"}', "schema version 2 is unknown"),
        (b'{"schema_version": 1}', "says no status"),
    ],
)
def test_an_unreadable_record_is_a_row_with_a_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "record.json").write_bytes(content)
    run = read_run(tmp_path)
    assert run.status == "unreadable"
    assert reason in run.reason
    assert [row.status for table in compare([run]).tables for row in table.rows] == ["unreadable"]


@pytest.mark.parametrize("value", [None, "text", 7, -1.5, [], [None], {}, {"a": []}, True, float("nan")])
def test_any_value_under_any_key_is_survived(tmp_path: Path, value: object) -> None:
    runs = []
    for index, key in enumerate(record()):
        content = {**record(), key: value, "schema_version": 1}
        runs.append(read_run(write_run(tmp_path / str(index), content)))
    compare(runs)


@pytest.mark.timeout(20)
def test_a_fifo_in_a_file_s_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "record.json")
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert read_run(tmp_path).reason == "record.json cannot be read: is no regular file"
    assert read_points(tmp_path) == []
    assert past_predictions([tmp_path]) == []
    assert earlier_cells([tmp_path]) == {}


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, record(reason="bad\x1b[2Jthing\nsecond", status="failed")))
    assert run.reason == "bad [2Jthing second"


def test_a_living_runner_is_alive_and_its_run_is_running(tmp_path: Path) -> None:
    assert runner_liveness(_myself()) == "alive"
    assert read_run(write_run(tmp_path, record(status="running", runner=_myself()))).status == "running"


def test_a_dead_runner_makes_the_run_failed(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    runner = _runner(child.pid, psutil.Process(child.pid).create_time())
    assert runner_liveness(runner) == "alive"
    child.communicate(b"\n")
    run = read_run(write_run(tmp_path, record(status="running", runner=runner)))
    assert (run.status, run.reason) == ("failed", "the runner died")


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    runner = _runner(child.pid, psutil.Process(child.pid).create_time())
    deadline = time.monotonic() + 20
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        assert runner_liveness(runner) == "dead"
    finally:
        child.wait()


def test_a_reused_process_number_or_another_boot_is_dead_and_another_host_unknown(tmp_path: Path) -> None:
    started = psutil.Process().create_time()
    assert runner_liveness(_myself(create_time=started - 1.9)) == "alive"
    assert runner_liveness(_myself(create_time=started - 2.5)) == "dead"
    assert runner_liveness(_myself(boot_id="another boot")) == "dead"
    assert runner_liveness(_myself(host="elsewhere")) == "unknown"
    assert runner_liveness({}) == "unknown"
    run = read_run(write_run(tmp_path, record(status="running", runner=_myself(host="elsewhere"))))
    assert (run.status, run.reason) == ("running", "on host elsewhere, not checked from here")


def test_run_folders_are_found_in_trees_sweeps_and_by_name(tmp_path: Path) -> None:
    first = write_run(tmp_path / "outputs" / "a", record())
    second = write_run(tmp_path / "multirun" / "s" / "0", record())
    write_run(second / "checkpoints" / "step_2", record())
    write_run(tmp_path / ".hidden", record())
    assert find_run_folders([tmp_path]) == [second, first]
    assert find_run_folders([first, tmp_path / "outputs", first / "record.json"]) == [first]
    with pytest.raises(NoSuchFolder, match=r"no such folder: .*nothing"):
        find_run_folders([tmp_path / "nothing"])


def test_the_log_survives_a_cut_line_and_keeps_the_later_of_two_equal_steps(tmp_path: Path) -> None:
    lines = [
        '{"step": 1, "loss": 3.0, "seconds": 2}',
        '{"step": 2, "loss": NaN, "seconds": 4}',
        "nonsense",
        '{"step": 1, "loss": 1.0, "seconds": 3}',
        '{"st',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    found = read_points(tmp_path)
    assert [(point.step, point.loss) for point in found] == [(1, 1.0), (2, None)]
    assert elapsed_seconds(found) == [3.0, 7.0]
    assert read_points(tmp_path / "none") == []


def test_elapsed_time_is_taken_as_logged(tmp_path: Path) -> None:
    write_run(tmp_path, record(), points(steps=3, seconds=0.5))
    assert elapsed_seconds(read_points(tmp_path)) == [5.5, 6.0, 6.5]


def test_steps_between_logged_ones_count_in_the_summed_time(tmp_path: Path) -> None:
    write_run(tmp_path, record(), [{"step": 10, "seconds": 0.5}, {"step": 20, "seconds": 1.0}])
    assert elapsed_seconds(read_points(tmp_path)) == [5.0, 15.0]


def test_a_thousand_records_make_a_table(tmp_path: Path) -> None:
    methods = ("DDP", "ZeRO-2")
    for index in range(1000):
        method = methods[index % 2]
        content = record(method, micro=8 * (1 + index % 5), seed=index, train_seconds=10 + index % 7)
        write_run(tmp_path / str(index), content, points(steps=20))
    comparison = compare(read_runs(find_run_folders([tmp_path])))
    out = io.StringIO()
    print_comparison(comparison, Console(file=out, width=120))
    assert sum(len(table.rows) for table in comparison.tables if table.kind == "matched") == 1000
    assert sum(line.endswith("completed") for line in out.getvalue().splitlines()) >= 1000
