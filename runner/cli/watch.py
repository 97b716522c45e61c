"""`python -m runner watch [RUN_DIR …]`: a live view of runs; it only reads files and may be left at any time."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from runner.errors import EXIT_COMPLETED
from runner.memory.amounts import mib
from runner.report.metrics_log import read_points
from runner.report.records import DEFAULT_FOLDERS, find_run_folders
from runner.rundir.heartbeat import read_heartbeats
from runner.trackers.run_folder import Folder

USAGE = """usage: python -m runner watch [RUN_DIR ...]

A live view of runs and sweeps (default: outputs/ and multirun/): status, step, loss, tokens/s, memory, time left.
It only reads files: start and leave it (Ctrl-C) at will. Where the output is no terminal, it is printed once."""
BARS = "▁▂▃▄▅▆▇█"
MOST_RUNS = 20
POINTS = 24
SECONDS = 1.0


def main(arguments: Sequence[str]) -> int:
    """Show until Ctrl-C or until no run goes on; returns the exit status."""
    roots = [Path(text) for text in arguments] or [path for path in map(Path, DEFAULT_FOLDERS) if path.exists()]
    console = Console()
    table, going = view(roots)
    if not sys.stdout.isatty():
        console.print(table)
        return EXIT_COMPLETED
    with Live(table, console=console, auto_refresh=False) as live:
        while going:
            time.sleep(SECONDS)
            table, going = view(roots)
            live.update(table, refresh=True)
    return EXIT_COMPLETED


def view(roots: list[Path]) -> tuple[Table, bool]:
    """The newest runs as a table, and whether one of them goes on."""
    table = Table("run", "status", "step", "loss", "", "tokens/s", "memory", "left", box=None, pad_edge=False)
    folders = sorted(find_run_folders(roots), key=lambda path: path.stat().st_mtime)[-MOST_RUNS:] if roots else []
    going = False
    for path in folders:
        try:
            folder = Folder.read(path)
        except (OSError, ValueError):
            continue
        ending = folder.ending()
        going |= ending is None
        table.add_row(*row(folder, ending.status if ending else "running"))
    return table, going


def row(folder: Folder, status: str) -> list[str]:
    """One run: its newest step, the course of its loss, speed, memory, and the time left at the pace of its last
    steps.
    """
    points = read_points(folder.path)
    losses = [point.loss for point in points if point.loss is not None]
    beat = read_heartbeats(folder.path).get(0, {}) if status == "running" else {}
    step = int(beat.get("step") or (points[-1].step if points else 0))
    total = int(folder.record.get("planned_optimizer_steps") or 0)
    seconds = points[-1].seconds if points else None
    left = f"{seconds * (total - step):.0f} s" if status == "running" and seconds and total else ""
    epochs = folder.record.get("epochs") or []
    speed = epochs[-1].get("train_tokens_per_second") if epochs else None
    return [
        folder.described().name,
        str(beat.get("phase") or status),
        f"{step}/{total}" if total else str(step),
        f"{losses[-1]:.4f}" if losses else "",
        sparkline(losses[-POINTS:]),
        f"{speed:,.0f}" if speed else "",
        _memory(folder),
        left,
    ]


def _memory(folder: Folder) -> str:
    ranks = (folder.system[-1].get("rank_memory_bytes") or {}).values() if folder.system else []
    peak = max([*ranks, *(folder.record.get("peak_memory_bytes") or [])], default=0)
    return mib(peak) if peak else ""


def sparkline(values: list[float]) -> str:
    """Values as bars, the lowest and the highest over the whole height."""
    if not values:
        return ""
    low, height = min(values), max(values) - min(values)
    return "".join(BARS[round((value - low) / height * (len(BARS) - 1)) if height else 0] for value in values)
