"""Which runs share a table, how repeats are folded, and what the table says about fairness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_records import GIB, points, record, repeat, write_run

from runner.report.aggregation import Row
from runner.report.columns import batch_text, bytes_text, speed_up_text
from runner.report.fairness import curve_difference, statement
from runner.report.records import read_run
from runner.report.run_view import Run
from runner.report.tables import Comparison, Table, compare


def _runs(
    folder: Path, records: list[dict[str, Any]], logs: list[list[dict[str, Any]] | None] | None = None
) -> list[Run]:
    logs = logs or [points()] * len(records)
    return [
        read_run(write_run(folder / f"run{index}", content, log))
        for index, (content, log) in enumerate(zip(records, logs, strict=True))
    ]


def _compared(folder: Path, *records: dict[str, Any]) -> Comparison:
    return compare(_runs(folder, list(records)))


def _kinds(comparison: Comparison) -> list[str]:
    return [table.kind for table in comparison.tables]


def _by_label(table: Table) -> dict[str, Row]:
    return {row.label: row for row in table.rows}


def test_matched_and_largest_are_separate_tables(tmp_path: Path) -> None:
    comparison = _compared(
        tmp_path,
        record("ZeRO-2"),
        record("DDP"),
        record("DDP", micro=16),
        record("ZeRO-2", micro=40, train_seconds=5.0),
    )
    matched, largest = comparison.tables
    assert (matched.kind, [row.label for row in matched.rows]) == ("matched", ["DDP", "ZeRO-2"])
    assert matched.title.startswith("Matched batch: global batch 16")
    assert (largest.kind, [(row.label, row.first.micro_batch_size) for row in largest.rows]) == (
        "largest",
        [("DDP", 16), ("ZeRO-2", 40)],
    )
    assert largest.rows[1].speed_up is not None
    assert largest.rows[1].speed_up.value == pytest.approx(2.0)
    assert any("not searched for by fit: DDP, ZeRO-2" in note for note in largest.notes)


def test_a_table_of_the_largest_needs_different_batches_or_a_search(tmp_path: Path) -> None:
    assert _kinds(_compared(tmp_path / "same", record("DDP"), record("ZeRO-2"))) == ["matched"]
    searched = [record(method, fit={"largest_micro_batch": 8}) for method in ("DDP", "ZeRO-2")]
    assert _kinds(_compared(tmp_path / "searched", *searched)) == ["matched", "largest"]


def test_one_method_alone_is_not_compared(tmp_path: Path) -> None:
    (table,) = _compared(tmp_path, record("DDP"), record("DDP", micro=16)).tables
    assert (table.kind, table.fairness) == ("runs", None)
    assert [row.label for row in table.rows] == ["DDP, batch 16", "DDP, batch 32"]


def test_other_models_and_data_are_never_in_one_comparison(tmp_path: Path) -> None:
    other = record("ZeRO-2", config={"model": {"name": "deberta_base"}})
    assert _kinds(_compared(tmp_path, record("DDP"), other)) == ["runs", "runs"]


def test_trials_of_fit_are_no_rows(tmp_path: Path) -> None:
    comparison = _compared(tmp_path, record("DDP"), record("ZeRO-2", fit={"trial": 3}))
    assert [row.method for table in comparison.tables for row in table.rows] == ["DDP"]
    assert comparison.notes == ("1 trials of fit are not rows: they are a few steps long.",)


def test_repeats_are_folded_into_a_mean_with_interval(tmp_path: Path) -> None:
    runs = [repeat("DDP", index, seconds) for index, seconds in enumerate((10.0, 12.0, 14.0))]
    runs += [repeat("ZeRO-2", index, seconds) for index, seconds in enumerate((5.0, 6.0, 7.0))]
    (table,) = _compared(tmp_path, *runs).tables
    rows = _by_label(table)
    ddp = rows["DDP"].train_seconds
    assert ddp is not None
    assert (ddp.mean, ddp.count) == (12.0, 3)
    assert ddp.half_width == pytest.approx(4.9683, abs=1e-4)
    assert speed_up_text(rows["DDP"]) == "baseline"
    ratio = rows["ZeRO-2"].speed_up
    assert ratio is not None
    assert ratio.value == pytest.approx(2.0, rel=1e-9)
    assert speed_up_text(rows["ZeRO-2"]) == f"2.00× ({ratio.low:.2f}–{ratio.high:.2f})"


def test_runs_by_hand_are_distinguished_by_what_differs_and_not_folded(tmp_path: Path) -> None:
    runs = [
        record("DDP", seed=1),
        record("DDP", seed=2),
        record("ZeRO-2", config={"optimizer": {"lr": 1e-4}}),
        record("ZeRO-2"),
    ]
    (table,) = _compared(tmp_path, *runs).tables
    labels = [row.label for row in table.rows]
    assert labels == [
        "DDP, seed=1",
        "DDP, seed=2",
        "ZeRO-2, lr=2e-05",
        "ZeRO-2, lr=0.0001",
    ]


def test_identical_runs_still_get_labels_of_their_own(tmp_path: Path) -> None:
    (table,) = _compared(tmp_path, record("DDP"), record("DDP"), record("ZeRO-2")).tables
    assert len({row.label for row in table.rows}) == 3


def test_a_failed_repeat_is_named_and_not_averaged(tmp_path: Path) -> None:
    runs = [
        repeat("DDP", 0, 10.0),
        repeat("DDP", 1, 90.0, status="failed", reason="CUDA out of memory"),
        repeat("ZeRO-2", 0, 5.0),
    ]
    (table,) = _compared(tmp_path, *runs).tables
    row = table.rows[0]
    assert (row.status, row.reason) == ("1 of 2 completed", "CUDA out of memory")
    assert row.train_seconds is not None
    assert (row.train_seconds.mean, row.train_seconds.half_width) == (10.0, None)


def test_a_rerun_of_the_same_repeat_supersedes_the_failed_one(tmp_path: Path) -> None:
    failed = repeat("DDP", 0, 10.0, status="failed", reason="disk full", started_at="2025-01-02T00:00:00Z")
    comparison = _compared(tmp_path, repeat("DDP", 0, 8.0), failed)
    (row,) = comparison.tables[0].rows
    assert (row.status, len(row.runs)) == ("completed", 1)
    assert comparison.notes == ("1 earlier runs of the same cell and seed are superseded by later ones.",)


def test_a_repeat_that_failed_before_it_read_data_belongs_to_its_cell(tmp_path: Path) -> None:
    early = repeat("DDP", 1, 10.0, status="failed", reason="no such file")
    early["data"] = {}
    ((row,),) = [table.rows for table in _compared(tmp_path, repeat("DDP", 0, 8.0), early).tables]
    assert row.status == "1 of 2 completed"
    other_data = repeat("DDP", 1, 10.0, data={"train": {"fingerprint": "changed"}})
    (table,) = _compared(tmp_path / "changed", repeat("DDP", 0, 8.0), other_data).tables
    assert [row.status for row in table.rows] == ["completed", "completed"]


def test_failed_rows_show_no_numbers_and_are_no_baseline(tmp_path: Path) -> None:
    (table,) = _compared(tmp_path, record("DDP", status="failed", reason="killed"), record("ZeRO-2")).tables
    ddp, zero = table.rows
    assert (ddp.train_seconds, ddp.peak_memory_bytes, ddp.metrics, ddp.speed_up) == (None, None, {}, None)
    assert zero.is_baseline


def test_the_judging_metric_stands_first(tmp_path: Path) -> None:
    scores = {"accuracy": 0.7, "f1": 0.8, "loss": 0.1}
    (table,) = _compared(tmp_path, record(metrics=scores)).tables
    assert table.metric_names == ["f1", "accuracy", "loss"]


def test_fairness_names_all_that_was_the_same(tmp_path: Path) -> None:
    (table,) = _compared(tmp_path, record("DDP"), record("ZeRO-2")).tables
    assert table.fairness is not None
    assert {check.verdict for check in table.fairness.checks} == {"same"}
    (line,) = statement(table.fairness)
    for name in ("optimizer class", "optimizer state dtype", "learning-rate curve", "global batch size",
    "gradient clipping", "data order",
                 "precision", "samples seen", "evaluation settings", "warm-up steps", "data set fingerprint", "model",
                 "seed"):  # fmt: skip
        assert name in line


@pytest.mark.parametrize(
    ("changes", "name", "reported"),
    [
        (
            {"observed": {"optimizer_class": "DeepSpeedCPUAdam"}},
            "optimizer class",
            "DDP: AdamW; ZeRO-2: DeepSpeedCPUAdam",
        ),
        ({"observed": {"optimizer_fused": True}}, "optimizer class", "DDP: AdamW; ZeRO-2: AdamW (fused)"),
        (
            {"observed": {"optimizer_state_dtype": "bfloat16"}},
            "optimizer state dtype",
            "DDP: float32; ZeRO-2: bfloat16",
        ),
        ({"observed": {"activation_dtype": "float16"}}, "precision", "DDP: bfloat16; ZeRO-2: float16"),
        ({"config": {"train": {"gradient_clipping": 0.0}}}, "gradient clipping", "DDP: 1.0; ZeRO-2: 0.0"),
        ({"data_order_hash": "x"}, "data order", "DDP: order-42; ZeRO-2: x"),
        ({"samples_seen": 120}, "samples seen", "DDP: 128; ZeRO-2: 120"),
        ({"config": {"train": {"eval_micro_batch_size": 4}}}, "evaluation settings", "DDP: 32; ZeRO-2: 4"),
        (
            {"config": {"train": {"warmup_steps_not_timed": 0}}},
            "warm-up steps left out of step times",
            "DDP: 3; ZeRO-2: 0",
        ),
        ({"data": {"train": {"fingerprint": "zz"}}}, "data set fingerprint", "DDP: aa; ZeRO-2: zz"),
        ({"num_parameters": 5}, "model", "DDP: 1000000; ZeRO-2: 5"),
        ({"config": {"train": {"seed": 7}}}, "seed", "DDP: 42; ZeRO-2: 7"),
        ({"versions": {"torch": "2.8.0"}}, "package versions", "DDP: torch 2.7.1; ZeRO-2: torch 2.8.0"),
        (
            {"hardware": {"devices": [{"name": "A100"}, {"name": "A100"}]}},
            "devices and ranks",
            "DDP: H100, H100; ZeRO-2: A100, A100",
        ),
    ],
)
def test_fairness_names_what_differs(tmp_path: Path, changes: dict[str, Any], name: str, reported: str) -> None:
    (table,) = _compared(tmp_path, record("DDP"), record("ZeRO-2", **changes)).tables
    assert table.fairness is not None
    assert [check.name for check in table.fairness.unexpected] == [name]
    assert statement(table.fairness)[0] == f"DIFFERS: {name} ({reported})."


def test_fairness_says_what_was_not_recorded(tmp_path: Path) -> None:
    (table,) = _compared(tmp_path, record("DDP"), record("ZeRO-2", samples_seen=None)).tables
    assert table.fairness is not None
    assert statement(table.fairness)[-1] == "Not recorded in every row, so not checked: samples seen."


def test_learning_rates_are_compared_at_equal_steps(tmp_path: Path) -> None:
    logs = [points(), points(peak=4e-5)]
    (table,) = compare(_runs(tmp_path, [record("DDP"), record("ZeRO-2")], logs)).tables
    assert table.fairness is not None
    assert (
        statement(table.fairness)[0]
        == "DIFFERS: learning-rate curve (DDP: reference; ZeRO-2: from step 1: 3.5e-05 against 1.75e-05)."
    )
    assert curve_difference({1: 1.0, 2: 2.0, 3: 3.0}, {2: 2.0 + 1e-7, 3: 3.0}) == ""
    assert curve_difference({1: 1.0, 2: 2.0}, {1: 1.0}) == "1 optimizer steps against 2"
    assert curve_difference({1: 1.0}, {2: 2.0}) == "no optimizer step logged by both"


def test_seeds_of_repeats_pair_up(tmp_path: Path) -> None:
    runs = [repeat(method, index, 10.0) for method in ("DDP", "ZeRO-2") for index in range(3)]
    (table,) = _compared(tmp_path, *runs).tables
    assert table.fairness is not None
    assert not table.fairness.named("differs")
    (table,) = _compared(tmp_path / "less", *runs[:-1]).tables
    assert table.fairness is not None
    assert "seed" in [check.name for check in table.fairness.unexpected]


def test_values_of_repeats_are_reported_in_full(tmp_path: Path) -> None:
    (table,) = _compared(tmp_path, repeat("DDP", 0, 10.0), repeat("DDP", 1, 10.0), record("ZeRO-2")).tables
    assert table.fairness is not None
    assert "DIFFERS: seed (DDP: 42 and 43; ZeRO-2: 42)." in statement(table.fairness)


def test_what_the_table_is_about_differs_by_design(tmp_path: Path) -> None:
    runs = [record("DDP", fit={"largest_micro_batch": 8}), record("ZeRO-2", micro=16, fit={"largest_micro_batch": 16})]
    table = _compared(tmp_path, *runs).tables[0]
    assert (table.kind, table.fairness is not None) == ("largest", True)
    assert table.fairness is not None
    assert table.fairness.unexpected == []
    assert statement(table.fairness)[0].startswith("Differs by design: global batch size (DDP: 16; ZeRO-2: 32)")


def test_notes_name_generated_data_cut_epochs_and_phases_that_do_not_add_up(tmp_path: Path) -> None:
    cut = record("DDP", data={"train": {"rows": 1000, "generated": True}}, wall_seconds=100.0)
    (table,) = _compared(tmp_path, cut).tables
    assert [note.split(" ")[0] for note in table.notes] == ["The", "Epochs", "Phases"]
    (table,) = _compared(tmp_path / "whole", record()).tables
    assert table.notes == ()


def test_numbers_carry_their_units(tmp_path: Path) -> None:
    (run,) = _runs(tmp_path, [record()])
    assert batch_text(run) == "16 = 8×1×2"
    assert [bytes_text(value) for value in (None, 512, 1536, 3 * GIB, 250 * GIB)] == [
        "–",
        "512 B",
        "1.50 KiB",
        "3.00 GiB",
        "250 GiB",
    ]
