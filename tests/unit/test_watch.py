"""The live view: one row a run, from files alone."""

from __future__ import annotations

import json

from runner.cli.watch import row, sparkline, view
from runner.config.schema import RunConfig
from runner.trackers.run_folder import Folder


def test_a_row_is_read_from_the_folder(tmp_path):
    folder = tmp_path / "run"
    (folder / "heartbeat").mkdir(parents=True)
    record = {"status": "running", "planned_optimizer_steps": 10, "peak_memory_bytes": [3 * 2**20]}
    (folder / "record.json").write_text(json.dumps(record | {"config": RunConfig().model_dump(mode="json")}))
    lines = [{"step": step, "loss": loss, "seconds": 2.0} for step, loss in ((1, 0.9), (2, 0.5))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "heartbeat" / "rank_0.json").write_text(json.dumps({"step": 4, "phase": "training"}))
    found = row(Folder.read(folder), "running")
    assert found == ["run", "training", "4/10", "0.5000", "█▁", "", "3 MiB", "12 s"]
    table, going = view([tmp_path])
    assert (table.row_count, going) == (1, True)


def test_the_sparkline_spans_lowest_to_highest():
    assert sparkline([0.0, 7.0, 3.5]) == "▁█▅"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([]) == ""
