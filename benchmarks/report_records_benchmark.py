"""Seconds that `report` takes for many records: `python benchmarks/report_records_benchmark.py [RECORDS]` (default
10,000).

Writes the records into a temporary folder first; only reading, comparing and printing are timed.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit")]

from report_records import METHODS, points, record, write_run  # noqa: E402
from rich.console import Console  # noqa: E402

from runner.report.exports import csv_text  # noqa: E402
from runner.report.records import find_run_folders, read_runs  # noqa: E402
from runner.report.tables import compare  # noqa: E402
from runner.report.terminal import print_comparison  # noqa: E402


def write_records(folder: Path, count: int) -> None:
    """`count` completed runs of three methods, each with a log of 20 lines."""
    methods = tuple(METHODS)
    for index in range(count):
        content = record(methods[index % 3], micro=8 * (1 + index % 5), seed=index, train_seconds=10 + index % 7)
        write_run(folder / f"{index:06}", content, points(steps=20))


def measure(count: int) -> dict[str, float]:
    """Seconds by step."""
    with tempfile.TemporaryDirectory() as name:
        write_records(Path(name), count)
        marks = [time.perf_counter()]
        runs = read_runs(find_run_folders([Path(name)]))
        marks.append(time.perf_counter())
        comparison = compare(runs, [Path(name)])
        marks.append(time.perf_counter())
        csv_text(comparison)
        marks.append(time.perf_counter())
        print_comparison(comparison, Console(file=io.StringIO(), width=160))
        marks.append(time.perf_counter())
    return {
        step: after - before
        for step, before, after in zip(
            ("find and read", "compare", "as csv", "as table"), marks, marks[1:], strict=False
        )
    }


def main(count: int) -> None:
    """Print seconds by step."""
    for step, seconds in measure(count).items():
        print(f"{step:>14}: {seconds:7.2f} s for {count} records")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
