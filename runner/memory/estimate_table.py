"""An estimate as a terminal shows it."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from runner.memory.amounts import gib, mib
from runner.memory.estimate import EXCLUDED, MemoryEstimate
from runner.memory.items import CATEGORIES, MOMENTS
from runner.memory.past_predictions import PastPrediction
from runner.memory.search import Alternative, Fit


def size(number: int) -> str:
    """Bytes as a person reads them: `19.83 GiB`, `512 MiB`, `-` for nothing."""
    if number == 0:
        return "-"
    if number >= 2**30:
        return gib(number)
    return mib(number) if number >= 10 * 2**20 else mib(number, 2)


def show(console: Console, found: MemoryEstimate, largest: Fit | None, device_bytes: int | None) -> None:
    """The configured run: totals, what they are made of, and why."""
    workload = found.workload
    console.print(
        f"[bold]{method(found)}[/bold], {workload.precision}, {_ranks(found)}, micro batch "
        f"{workload.micro_batch_size}, {found.num_parameters:,} parameters"
    )
    console.print(
        f"per rank [bold]{size(found.device_bytes_per_rank)}[/bold] on {workload.device}, largest at: "
        f"{MOMENTS[found.peak_moment]}"
    )
    console.print(f"per host [bold]{size(found.host_bytes)}[/bold] of main memory")
    if largest is not None and device_bytes is not None:
        console.print(f"largest micro batch on {size(device_bytes)}: [bold]{largest.rows or 'does not fit'}[/bold] ")
        console.print(f"  because {largest.reason}")
    console.print(_items(found))
    for note in found.notes:
        console.print(f"note: {note}", style="dim")
    console.print("not counted: " + "; ".join(EXCLUDED), style="dim")


def _ranks(found: MemoryEstimate) -> str:
    count, nodes = found.workload.num_processes, found.workload.num_nodes
    text = f"{count} rank" + ("s" if count > 1 else "")
    return text if nodes == 1 else f"{nodes} machines with {text} each"


def method(found: MemoryEstimate) -> str:
    """The method and gradient checkpointing in words."""
    workload = found.workload
    name = workload.layout.label
    return name + (" + gradient checkpointing" if workload.gradient_checkpointing else "")


def _items(found: MemoryEstimate) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("item")
    for heading in ("at the peak", "largest", "in host memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for name, label in CATEGORIES.items():
        now, largest, host = (
            found.category_at(name, found.peak_moment),
            found.largest_of(name),
            found.largest_of(name, "host"),
        )
        if largest or host:
            table.add_row(label, size(now), size(largest), size(host), _why(found, name))
    return table


def _why(found: MemoryEstimate, category: str) -> str:
    """The reason of the item that weighs most: on the device before the host, at the peak before any other moment."""
    items = [item for item in found.items if item.category == category]
    heaviest = max(items, key=lambda item: (item.place == "device", found.peak_moment in item.moments, item.bytes))
    return heaviest.why


def show_alternatives(
    console: Console, rows: Sequence[Alternative], micro_batch_size: int, device_bytes: int | None
) -> None:
    """The other ways to run it, the configured one marked."""
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"alternatives at micro batch {micro_batch_size} (recompute: gradient checkpointing)",
        title_justify="left",
    )
    for heading in ("method", "recompute"):
        table.add_column(heading, no_wrap=True)
    for heading in ("GiB/rank", "GiB/host"):
        table.add_column(heading, justify="right", no_wrap=True)
    if device_bytes:
        table.add_column(f"rows in {size(device_bytes)}", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_alternative(row), style="bold" if row.chosen else None)
    console.print(table)


def _alternative(row: Alternative) -> list[str]:
    workload = row.estimate.workload
    cells = [("→ " if row.chosen else "  ") + workload.layout.label, "yes" if workload.gradient_checkpointing else ""]
    cells += [f"{number / 2**30:.2f}" for number in (row.estimate.device_bytes_per_rank, row.estimate.host_bytes)]
    if row.fit is not None:
        cells.append(str(row.fit.rows) if row.fit.rows else "none fits")
    return cells


def show_past(console: Console, past: Sequence[PastPrediction]) -> None:
    """Earlier runs: predicted, measured, error."""
    if not past:
        console.print("no earlier run here holds both a prediction and a measured peak", style="dim")
        return
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title="earlier predictions on this machine", title_justify="left"
    )
    for heading in ("run", "method"):
        table.add_column(heading, overflow="fold")
    for heading in ("predicted", "measured", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in past:
        table.add_row(
            each.run_id, each.method, size(each.predicted_bytes), size(each.measured_bytes), f"{each.error:+.0%}"
        )
    console.print(table)
