"""The page of published memory figures holds what its command prints."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from workloads import made, state_items

from benchmarks import memory_published as published
from runner.engines.deepspeed.memory import ZeroLayout
from runner.memory.facts import Architecture
from runner.memory.workload import Workload

PAGE = published.PAGE.read_text()


@pytest.mark.parametrize(
    "name", ["states", *(pytest.param(name, marks=pytest.mark.soak) for name in published.TABLES if name != "states")]
)
def test_a_table_of_the_page_is_the_commands(name: str) -> None:
    """Run `python -m benchmarks.memory_published --write` where it is not."""
    assert published.written(PAGE, name) == "\n".join(published.TABLES[name]())


def test_each_ratio_far_from_one_is_explained() -> None:
    lines = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ")]
    judged = 0
    for cells in lines:
        if len(cells) == 5 and cells[3].strip().replace(".", "").isdigit():
            judged += 1
            near = 0.8 <= float(cells[3]) <= 1.25 or cells[1].strip().startswith("≥")
            assert near or cells[4].strip(), cells
    assert judged == len(published.runs()) + len(published.states())


@pytest.mark.parametrize(("layout", "bytes_each"), [(ZeroLayout(0), 16.0), (ZeroLayout(2), 2 + 14 / 64)])
def test_the_paper_counts_16_bytes(layout: ZeroLayout, bytes_each: float) -> None:
    """2 + 2 + 12 bytes, of which stage 2 divides 14; a gradient on a partition's border is kept whole (1 of 300)."""
    found = published.state_gigabytes(published.State("", layout, 64, 0.0))
    assert found == pytest.approx(7.5 * bytes_each, rel=0.01)


def test_optimizer_state_is_built_when_the_whole_weights_are_gone() -> None:
    """32.5 B parameters on 8 × 80 GiB, ZeRO-3: 60.5 GiB of weights are moved to each device, and an eighth of them is
    partitioned beside them; master copies (15 GiB) and gradients (7.6 GiB) come after that.
    """
    facts = published.even_model(32_500_000_000, 500)
    work: Workload = made(Architecture.of("causal_lm", {"model_type": "llama"}), precision="bf16", zero_stage=3)
    items = state_items(replace(work, num_processes=8), facts)
    setup = [item for item in items if "setup" in item.moments and item.place == "device"]
    bucket = 2 * 200_000_000
    own = 2 * 500 * math.ceil(65_000_000 / 8)
    assert sum(item.bytes for item in setup) == 2 * 32_500_000_000 + own + bucket
    step = sum(item.bytes for item in items if "step" in item.moments and item.category in published.STATE)
    assert step == 8 * own  # 16 bytes an element
