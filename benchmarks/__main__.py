"""The table of benchmarks/results.md: `python -m benchmarks [--quick] [--only NAME …] [--work DIR]`.

Ratios against plain scripts of our own (benchmarks/baseline) under `accelerate launch`, measured alternately in one
run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import evaluation, growth, start_up, training
from benchmarks.measure import Bench
from benchmarks.result import Figure, markdown_table
from runner import machine
from runner.rundir import provenance, record

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
PARTS: dict[str, Callable[[Bench], list[Figure]]] = {
    "start_up": start_up.start_up,
    "commands": start_up.commands,
    "training": training.training,
    "loop": training.loop,
    "evaluation": evaluation.evaluation,
}


def main() -> int:
    """Measure what was asked for; what was not keeps its place in results.json."""
    options = _options()
    known = (
        json.loads(RESULTS.read_text())
        if RESULTS.exists() and options.only and not options.quick
        else {"figures": [], "growth": []}
    )
    work = options.work or Path(tempfile.mkdtemp(prefix="benchmarks-"))
    (work / "runs").mkdir(parents=True, exist_ok=True)
    bench = Bench(work.resolve(), options.quick, max(1, machine.physical_cores() // 2))
    began = time.monotonic()
    for name in options.only or [*PARTS, *growth.PARTS]:
        _measure(bench, name, known)
        print(f"[{time.monotonic() - began:5.0f} s] {name}", flush=True)
    results = {**known, **_circumstances(time.monotonic() - began, options)}
    text = markdown(results)
    print(text)
    if not options.quick:  # a quick run tries the harness; its numbers are nobody's business
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        (HERE / "results.md").write_text(text)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one small measurement each, to try the harness; writes no results"
    )
    parser.add_argument(
        "--only",
        nargs="*",
        choices=[*PARTS, *growth.PARTS],
        help="measure these parts only; the others keep their last results",
    )
    parser.add_argument(
        "--work", type=Path, help="folder for models, caches and runs, kept; default: a new temporary one"
    )
    return parser.parse_args()


def _measure(bench: Bench, name: str, results: dict[str, Any]) -> None:
    """One part, into `results` in the place of its earlier one."""
    if name in growth.PARTS:
        series = growth.PARTS[name](bench)
        results["growth"] = _in_order(
            [*(item for item in results["growth"] if item["name"] != name), series], list(growth.PARTS), "name"
        )
        return
    figures = [figure.as_dict() for figure in PARTS[name](bench)]
    results["figures"] = _in_order(
        [*(item for item in results["figures"] if item["part"] != name), *figures], list(PARTS), "part"
    )


def _in_order(items: list[dict[str, Any]], order: list[str], key: str) -> list[dict[str, Any]]:
    return sorted(items, key=lambda item: order.index(item[key]))


def _circumstances(seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "measured_at": record.now(),
        "seconds": seconds,
        "only": options.only,
        "versions": provenance.versions(),
        "code": provenance.code(),
        "hardware": machine.description("all"),
    }


def markdown(results: dict[str, Any]) -> str:
    """results.md from results.json."""
    hardware, versions = results["hardware"], results["versions"]
    parts = [
        "# Speed and memory, measured",
        "",
        f"`python -m benchmarks` (`make bench`), {results['measured_at']}, commit "
        f"{str(results['code']['git_commit'])[:10]}, {results['seconds'] / 60:.0f} minutes for what was measured last.",
        f"Machine: {hardware['cpu']}, {hardware['cpu_cores']} cores. "
        + ", ".join(
            f"{name} {versions[name]}"
            for name in ("python", "torch", "transformers", "accelerate", "deepspeed")
            if name in versions
        )
        + ".",
        "Medians; ± is the largest distance from the median. Ratios are those of medians, runner ÷ baseline, taken "
        "alternately in one run.",
        "",
        markdown_table(results["figures"]),
        "",
        *(f"- {item['what']}: {note}" for item in results["figures"] for note in item["notes"]),
        "",
        "The commands stand in results.json; what is measured and why is in docs/performance.md.",
        "",
        "## How cost grows",
        "",
        *(growth.markdown(series) for series in results["growth"]),
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
