"""How cost grows: start-up with ranks, data preparation with rows, the report with records, a sweep with cells."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from benchmarks.measure import Bench, first_step_seconds, runner_command
from benchmarks.start_up import FEW_STEPS, sweep
from benchmarks.workload import generated_rows, tiny_pairs

RANKS = (1, 2, 4)
ROWS = (10_000, 100_000, 1_000_000)
RECORDS = (10, 100, 1_000, 10_000)
CELLS = (1, 10, 50)

Series = dict[str, Any]


def by_ranks(bench: Bench) -> Series:
    """Command → first optimizer step, seconds."""
    pairs = tiny_pairs(bench)
    rows = []
    for ranks in RANKS:
        done, record = bench.runner(
            *pairs.runner(),
            f"train.max_steps={FEW_STEPS}",
            f"launcher.num_processes={ranks}",
            "launcher.omp_num_threads=1",
        )
        ours = first_step_seconds(done, record)
        done, figures = bench.launch("classification.py", *pairs.script(), "--max_steps", str(FEW_STEPS), ranks=ranks)
        rows.append({"ranks": ranks, "runner s": ours, "baseline s": figures["first_step_at"] - done.started})
    note = f"This machine has {os.cpu_count()} cores; more ranks than cores wait for each other."
    return {"name": "ranks", "what": "Command → first optimizer step, against ranks", "rows": rows, "notes": [note]}


def by_rows(bench: Bench) -> Series:
    """Tokenising generated rows in a fresh process: seconds, and the process's own memory."""
    rows = []
    for count in ROWS[:1] if bench.quick else ROWS:
        path = generated_rows(bench, count)
        answer = bench.work / "prepared.json"
        bench.run(
            [
                sys.executable,
                "-m",
                "benchmarks.prepare_rows",
                str(path),
                str(bench.work / f"prepared_{time.monotonic_ns()}"),
                str(answer),
            ]
        )
        found = json.loads(answer.read_text())
        rows.append(
            {
                "rows": count,
                "s": found["seconds"],
                "rows/s": count / found["seconds"],
                "own memory MiB": found["own_memory_bytes"] / 2**20,
                "second start s": found["again_seconds"],
            }
        )
        if count >= 1_000_000:
            path.unlink()
    return {
        "name": "rows",
        "what": "Data preparation (tokenise, write, map), against rows",
        "rows": rows,
        "notes": [
            "Own memory: largest growth of anonymous resident memory while preparing; mapped files are left out.",
            "The second start hashes the data file and maps the features.",
        ],
    }


def by_records(bench: Bench) -> Series:
    """Reading, comparing and printing records."""
    from benchmarks.report_records_benchmark import measure

    rows = []
    for count in RECORDS[:2] if bench.quick else RECORDS:
        seconds = measure(count)
        rows.append(
            {"records": count, "s": sum(seconds.values()), **{f"{name} s": value for name, value in seconds.items()}}
        )
    return {"name": "records", "what": "`report`, against records", "rows": rows, "notes": []}


def by_cells(bench: Bench) -> Series:
    """A whole sweep of tiny runs, and what is left a cell when the runs' own time is taken out."""
    pairs, rows = tiny_pairs(bench), []
    small = ("dataset.max_train_rows=64", "dataset.max_validation_rows=16", "train.max_steps=1")
    for count in (1, 3) if bench.quick else CELLS:
        began = time.monotonic()
        records = sweep(bench, pairs, count, *small)
        wall = time.monotonic() - began
        inside = sum(record["wall_seconds"] for record in records)
        rows.append(
            {
                "cells": count,
                "whole sweep s": wall,
                "s a cell": wall / count,
                "outside the runs s": wall - inside,
                "outside, a cell s": (wall - inside) / count,
            }
        )
    return {
        "name": "cells",
        "what": "A sweep of runs of one optimizer step, against cells",
        "rows": rows,
        "notes": [f"One run at a time, as typed: {runner_command('-m')[-3:]}".replace("'", "").replace(",", "")],
    }


PARTS = {"ranks": by_ranks, "rows": by_rows, "records": by_records, "cells": by_cells}


def markdown(series: Series) -> str:
    """A series as a small table."""
    names = list(series["rows"][0])
    lines = [f"### {series['what']}", "", "| " + " | ".join(names) + " |", "|" + "---:|" * len(names)]
    lines += ["| " + " | ".join(_cell(row[name]) for name in names) + " |" for row in series["rows"]]
    return "\n".join([*lines, "", *series["notes"], ""])


def _cell(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
