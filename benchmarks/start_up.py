"""Start-up: to the first optimizer step, a sweep's further cells, commands that start nothing, a second start on the
same data.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import Bench, first_step_seconds, launch_command, runner_command, step_seconds, typed
from benchmarks.result import Figure
from benchmarks.workload import Pairs, tiny_pairs

FEW_STEPS = 3
TENTH = 10
ROUNDS = 3


def start_up(bench: Bench) -> list[Figure]:
    """Command → first optimizer step; a sweep's cells; memory and tokenised data along the way."""
    pairs = tiny_pairs(bench)
    ours = [
        *pairs.runner(),
        f"train.max_steps={TENTH}",
        "train.log_every=1",
        f"launcher.omp_num_threads={bench.threads}",
    ]
    theirs = [*pairs.script(), "--max_steps", str(TENTH)]
    bench.launch("classification.py", *theirs)  # both sides start from a warm disk and with tokenised data
    bench.runner(*ours)
    to_first, baseline, data, memory, baseline_memory = [], [], [], [], []
    to_tenth, baseline_tenth = [], []
    for _ in range(bench.rounds(ROUNDS)):
        done, figures = bench.launch("classification.py", *theirs)
        baseline.append(figures["first_step_at"] - done.started)
        baseline_tenth.append(figures["tenth_step_at"] - done.started)
        baseline_memory.append(max(figures["peak_memory_bytes"]) / 2**20)
        done, record = bench.runner(*ours)
        to_first.append(first_step_seconds(done, record))
        to_tenth.append(step_seconds(bench.last_run, TENTH, done, record))
        data.append(record["phases"]["data_preparation"])
        memory.append(max(record["peak_memory_bytes"]) / 2**20)
    commands = [
        typed(runner_command(*ours)),
        typed(["DS_ACCELERATOR=cpu", *launch_command(bench.ranks), "benchmarks/baseline/classification.py", *theirs]),
    ]
    cells = _sweep_cells(bench, pairs)
    return [
        Figure(
            "start_up",
            f"command → first optimizer step, 2 CPU ranks, ZeRO-2, {pairs.name}",
            "s",
            to_first,
            baseline,
            0.5,
            part="start_up",
            commands=commands,
        ),
        Figure(
            "tenth_step",
            f"command → tenth optimizer step, 2 CPU ranks, ZeRO-2, {pairs.name}",
            "s",
            to_tenth,
            baseline_tenth,
            0.4,
            part="start_up",
        ),
        Figure(
            "sweep_cell",
            "added start-up of a further cell of a sweep, against a separate launch",
            "s",
            cells,
            baseline[: len(cells)] or baseline,
            0.15,
            part="start_up",
            notes=["From the end of a cell's record to the first optimizer step of the next cell."],
        ),
        Figure(
            "data_ready",
            "second start on the same data: tokenizer loaded, features mapped",
            "s",
            data,
            target=0.3,
            part="start_up",
        ),
        Figure(
            "memory_tiny",
            f"peak resident memory of the largest rank, {pairs.name}",
            "MiB",
            memory,
            baseline_memory,
            1.0,
            part="start_up",
        ),
    ]


def _sweep_cells(bench: Bench, pairs: Pairs) -> list[float]:
    """Seconds from the end of each cell to the first optimizer step of the next."""
    records = sweep(bench, pairs, cells=2 if bench.quick else ROUNDS + 1)
    ends = [record["runner"]["started_monotonic"] + record["wall_seconds"] for record in records]
    firsts = [record["runner"]["started_monotonic"] + record["time_to_first_step_seconds"] for record in records]
    return [first - end for end, first in zip(ends, firsts[1:], strict=False)]


def sweep(bench: Bench, pairs: Pairs, cells: int, *more: str) -> list[dict[str, Any]]:
    """The records of a sweep over seeds, in order."""
    folder = bench.work / "sweeps" / f"{cells}-{len(list(bench.work.glob('sweeps/*')))}"
    seeds = ",".join(str(seed) for seed in range(1, cells + 1))
    # Every cell is run: one that an earlier benchmark has completed would be skipped.
    bench.run(
        runner_command(
            "-m",
            *pairs.runner(),
            f"train.seed={seeds}",
            f"train.max_steps={FEW_STEPS}",
            "sweep.rerun=all",
            f"launcher.omp_num_threads={bench.threads}",
            *more,
            f'hydra.sweep.dir="{folder}"',
        )
    )
    records = [json.loads(path.read_text()) for path in folder.rglob("record.json")]
    return sorted(records, key=lambda record: record["runner"]["started_monotonic"])


def commands(bench: Bench) -> list[Figure]:
    """What starts no rank: help, a mistyped key, the rendered files."""
    cases = {
        "help": ("`--help`", ["--help"], 0.5),
        "typo": ("a mistyped key → its error message", ["train.learning_rate=3"], 0.5),
        "render": ("`render`", ["render", f'hydra.run.dir="{Path(bench.work) / "rendered"}"'], 1.0),
    }
    figures = []
    for name, (what, arguments, target) in cases.items():
        command = runner_command(*arguments)
        bench.run(command, may_fail=True)
        seconds = [bench.run(command, may_fail=True).seconds for _ in range(bench.rounds(7))]
        figures.append(
            Figure(
                name,
                what,
                "s",
                seconds,
                target=target,
                part="commands",
                commands=[typed([sys.executable, "-m", "runner", arguments[0]])],
            )
        )
    return figures
