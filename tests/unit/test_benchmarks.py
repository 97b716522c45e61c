"""The benchmarks' arithmetic, and the README's table: it says what results.json says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.growth import markdown
from benchmarks.measure import Done, first_step_seconds, step_seconds, typed
from benchmarks.readme_table import with_table
from benchmarks.result import Figure, markdown_table, spread, table_row

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results.json"


def test_the_ratio_is_that_of_medians() -> None:
    figure = Figure("x", "x", "s", ours=[4.0, 1.0, 3.0], baseline=[10.0, 2.0, 6.0], target=0.5)
    assert figure.value == 0.5  # 3 ÷ 6
    assert figure.pair_ratios == [0.4, 0.5, 0.5]
    assert figure.met


@pytest.mark.parametrize(
    ("target", "more", "met"),
    [(1.0, False, False), (2.0, False, True), (1.5, True, True), (2.0, True, False), (None, False, None)],
)
def test_a_target_is_a_largest_or_a_smallest_value(target: float | None, more: bool, met: bool | None) -> None:
    assert Figure("x", "x", "s", [3.0], [2.0], target, more_is_better=more).met is met  # 1.5


def test_without_a_baseline_the_target_is_absolute() -> None:
    assert Figure("x", "x", "s", [0.2, 0.9, 0.3], target=0.3).met


def test_a_row_of_the_table() -> None:
    ratio = Figure("x", "start", "s", [4.0, 5.0, 4.0], [10.0, 8.0, 16.0], 0.5).as_dict()
    assert table_row(ratio) == ["start", "4 s ± 25%", "10 s ± 60%", "0.40", "≤ 0.5", "yes"]
    absolute = Figure("x", "help", "s", [0.6, 0.6], target=0.5).as_dict()
    assert table_row(absolute) == ["help", "0.6 s", "", "", "≤ 0.5 s", "**no**"]
    close = Figure("x", "loop", "ms/step", [1010.0], [1000.0], 1.01).as_dict()
    assert table_row(close)[1:4] == ["1,010 ms/step", "1,000 ms/step", "1.010"]


def test_spread_is_smallest_and_largest() -> None:
    assert spread([2.0, 1.0, 3.0]) == [1.0, 3.0]
    assert spread([]) is None


def test_first_step_counts_from_the_typed_command() -> None:
    """The interpreter's own start belongs to the command; the record's clock begins behind it."""
    record = {"runner": {"started_monotonic": 100.25}, "time_to_first_step_seconds": 4.0}
    assert first_step_seconds(Done(started=100.0, seconds=9.0, returncode=0, output=""), record) == 4.25


def test_commands_are_shown_without_this_machines_folders() -> None:
    import sys

    assert (
        typed([sys.executable, "-m", "runner", f"dataset.train={ROOT}/a.csv"]) == "python -m runner dataset.train=a.csv"
    )


def test_a_series_as_a_table() -> None:
    text = markdown(
        {
            "what": "Start against ranks",
            "rows": [{"ranks": 1, "s": 2.5}, {"ranks": 1000, "s": 12345.6}],
            "notes": ["Slow."],
        }
    )
    assert "| 1 | 2.5 |" in text
    assert "| 1,000 | 12,346 |" in text
    assert text.endswith("Slow.\n")


def test_the_table_goes_between_the_markers() -> None:
    results = {"figures": [Figure("x", "help", "s", [0.1], target=0.5).as_dict()]}
    page = with_table("before\n<!-- benchmark table -->\nold\n<!-- end -->\nafter\n", results)
    assert page.startswith("before\n<!-- benchmark table -->\n| figure |")
    assert page.endswith("<!-- end -->\nafter\n")
    assert "old" not in page
    assert with_table(page, results) == page
    with pytest.raises(ValueError, match="benchmark table"):
        with_table("no markers", results)


def test_the_readme_says_what_the_results_say() -> None:
    """Fix with `python -m benchmarks.readme_table`."""
    page = (ROOT / "README.md").read_text()
    assert markdown_table(json.loads(RESULTS.read_text())["figures"]) in page


def test_results_hold_what_a_reader_needs_to_judge_them() -> None:
    results = json.loads(RESULTS.read_text())
    assert {"torch", "accelerate", "deepspeed", "transformers"} <= set(results["versions"])
    assert results["hardware"]["cpu"]
    assert results["hardware"]["cpu_cores"]
    for figure in results["figures"]:
        assert figure["median"] == pytest.approx(sorted(figure["ours"])[len(figure["ours"]) // 2], rel=0.5)
        assert figure["spread"][0] <= figure["median"] <= figure["spread"][1]
        assert len(figure["ours"]) == len(figure["baseline"]) or not figure["baseline"]


def test_a_step_is_timed_from_the_command(tmp_path: Path) -> None:
    lines = [{"step": step, "elapsed_seconds": 3.0 + step} for step in range(1, 12)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = {"runner": {"started_monotonic": 100.25}}
    done = Done(started=100.0, seconds=20.0, returncode=0, output="")
    assert step_seconds(tmp_path, 10, done, record) == 13.25
