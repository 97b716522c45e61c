"""Training: throughput and memory against the plain script; the loop alone against the bare loop."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from tempfile import mkdtemp

from benchmarks.measure import Bench, launch_command, runner_command, typed
from benchmarks.result import Figure
from benchmarks.workload import Pairs, mrpc_pairs, tiny_pairs

ROUNDS = 2
QUICK_ROWS = 320


def training(bench: Bench) -> list[Figure]:
    """Rows a second, accuracy and peak memory on MRPC, or on the bundled sample where MRPC is not available."""
    pairs = mrpc_pairs(bench) or tiny_pairs(bench)
    ours = [*pairs.runner(), "train.epochs=1", f"launcher.omp_num_threads={bench.threads}"]
    theirs = [*pairs.script(), "--epochs", "1"]
    if bench.quick:
        ours, theirs = [*ours, f"dataset.max_train_rows={QUICK_ROWS}"], [*theirs, "--max_train_rows", str(QUICK_ROWS)]
    rates, memory, accuracy = ([], []), ([], []), ([], [])
    for number in range(bench.rounds(ROUNDS)):
        seed = 42 + number  # another order and another head each round: the spread of the accuracy
        _, figures = bench.launch("classification.py", *theirs, "--seed", str(seed))
        _, record = bench.runner(*ours, f"train.seed={seed}")
        samples, seconds = record["samples_seen"], sum(epoch["train_seconds"] for epoch in record["epochs"])
        for values, own, other in (
            (rates, samples / seconds, figures["samples"] / figures["train_seconds"]),
            (memory, max(record["peak_memory_bytes"]) / 2**20, max(figures["peak_memory_bytes"]) / 2**20),
            (accuracy, record["metrics"]["accuracy"], figures["metrics"]["accuracy"]),
        ):
            values[0].append(own)
            values[1].append(other)
    commands = [
        typed(runner_command(*ours)),
        typed(["DS_ACCELERATOR=cpu", *launch_command(bench.ranks), "benchmarks/baseline/classification.py", *theirs]),
    ]
    return [
        Figure(
            "training",
            f"training, {pairs.name}, 2 ranks, ZeRO-2",
            "samples/s",
            *rates,
            1.3,
            more_is_better=True,
            part="training",
            commands=commands,
            notes=_notes(pairs, accuracy),
        ),
        Figure(
            "accuracy",
            "validation accuracy after that epoch",
            "",
            *accuracy,
            part="training",
            notes=["Seeds differ between rounds; the range shows the noise."],
        ),
        Figure(
            "memory", f"peak resident memory of the largest rank, {pairs.name}", "MiB", *memory, 1.0, part="training"
        ),
    ]


def _notes(pairs: Pairs, accuracy: tuple[list[float], list[float]]) -> list[str]:
    notes = [f"Validation accuracy: runner {mean(accuracy[0]):.3f}, baseline {mean(accuracy[1]):.3f}."]
    if not pairs.real:
        notes.append(
            "MRPC or MiniLM is not available: measured on the bundled, generated sample, where accuracy after one "
            "epoch says little."
        )
    return notes


def loop(bench: Bench) -> list[Figure]:
    """Seconds an optimizer step of the runner's loop and of the bare loop, on identical batches, in the same ranks."""
    figures = []
    models = {"loop": (mrpc_pairs(bench), 480, 1), "loop_tiny": (tiny_pairs(bench), 4000, 2)}
    for name, (pairs, rows, rounds) in models.items():
        if pairs is None:
            continue
        folder, answer = Path(mkdtemp(dir=bench.work)) / "loop", bench.work / f"{name}.json"
        overrides = [
            *pairs.runner(),
            f"dataset.max_train_rows={min(rows, QUICK_ROWS) if bench.quick else rows}",
            f"launcher.omp_num_threads={bench.threads}",
        ]
        bench.run(runner_command("render", *overrides, f'hydra.run.dir="{folder}"'))
        launch = launch_command(bench.ranks)
        launch[launch.index("--config_file") + 1] = str(folder / "accelerate.yaml")
        bench.run(
            [*launch, "-m", "benchmarks.loop_rank", str(folder), str(answer), str(bench.rounds(rounds))],
            DS_ACCELERATOR="cpu",
            OMP_NUM_THREADS=str(bench.threads),
        )
        found = json.loads(answer.read_text())
        figures.append(
            Figure(
                name,
                f"the loop against the bare loop, {pairs.name}",
                "ms/step",
                found["loop"],
                found["bare"],
                1.01,
                part="loop",
                notes=["Each batch once by either, in turn, in the same ranks; an epoch each measurement."],
            )
        )
    return figures
