"""Faults asked for on real ranks: memory that runs out, and seconds that go where they belong.

A CUDA out-of-memory cannot exist on a CPU machine, so torch's own exception class is raised in its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SMALL

DDP = (
    "launcher=ddp",
    *SMALL,
    "train.micro_batch_size=8",
    "train.epochs=1",
    "train.max_steps=4",
    "train.log_every=1",
    "scheduler.warmup_steps=0",
)


@pytest.fixture(scope="module")
def plain(real_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return real_run(*DDP, run_dir=tmp_path_factory.mktemp("plain") / "run")


def test_a_run_without_faults_tries_evaluation_first(plain: Any) -> None:
    """The longest evaluation batch appears in every rank's log before step 1."""
    assert plain.returncode == 0
    for rank in (0, 1):
        log = (plain.run_dir / "logs" / f"rank_{rank}.log").read_text()
        assert "tried the longest evaluation batch of validation: " in log
    assert sum(plain.record["phases"].values()) == pytest.approx(plain.record["wall_seconds"], rel=0.05)


@pytest.mark.parametrize(
    ("fault", "phase"),
    [("oom:model_load:0:1", "model_load"), ("oom:forward:2", "forward"), ("oom:evaluation:5", "evaluation")],
)
def test_out_of_memory_is_reported_once_with_its_phase(real_run: Any, tmp_path: Path, fault: str, phase: str) -> None:
    ended = real_run(*DDP, run_dir=tmp_path / "run", environment={"RUNNER_FAULT": fault})
    failure = ended.record["failure"]
    assert ended.returncode == 4
    assert (failure["out_of_memory"], failure["phase"], failure["device"]) == (True, phase, "cpu")
    assert 0 < failure["peak_bytes"] < failure["capacity_bytes"]
    assert failure["advice"][0].startswith(f"out of memory in {phase}, rank ")
    assert len([line for line in failure["advice"] if line.startswith("try ")]) == 3
    assert ended.record["reason"].count("out of memory") == 1


@pytest.mark.alone
def test_a_sleep_is_charged_to_its_phase(real_run: Any, plain: Any, tmp_path: Path) -> None:
    """4 steps × 0.2 s of waiting for data, 4 × 0.1 s in the forward pass; samples are counted once over two ranks."""
    slow = real_run(
        *DDP, run_dir=tmp_path / "run", environment={"RUNNER_FAULT": "sleep:data_wait:*,sleep=0.1:forward:*"}
    )
    before, after = plain.record["phases"], slow.record["phases"]
    assert after["data_wait"] - before["data_wait"] == pytest.approx(0.8, abs=0.15)
    assert after["forward"] - before["forward"] == pytest.approx(0.4, abs=0.3)
    assert after["optimizer"] - before["optimizer"] == pytest.approx(0.0, abs=0.3)
    epoch = slow.record["epochs"][0]
    assert epoch["train_seconds"] >= 4 * 0.3
    assert slow.record["samples_seen"] == 4 * 8 * 2
    assert epoch["train_samples_per_second"] * epoch["train_seconds"] == pytest.approx(64)
    assert sum(after.values()) == pytest.approx(slow.record["wall_seconds"], rel=0.05)


def test_accumulation_changes_no_step(real_run: Any, plain: Any, tmp_path: Path) -> None:
    """8 × 1 and 2 × 4 on two ranks hold the same rows in each step: the same losses, up to the order of sums."""
    others = [text for text in DDP if not text.startswith("train.micro_batch_size")]
    cut = real_run(*others, "train.micro_batch_size=2", "train.gradient_accumulation_steps=4", run_dir=tmp_path / "run")
    assert cut.record["data_order_hash"] == plain.record["data_order_hash"]
    assert [step["loss"] for step in cut.steps] == pytest.approx([step["loss"] for step in plain.steps], rel=1e-5)


def test_memory_of_evaluation_does_not_grow_with_rows(real_run: Any, tmp_path: Path) -> None:
    """100 rows and 800 (kept logits of 20,000 words would need gigabytes) peak within 50 MB of each other."""
    lines = [
        f"the {colour} cat saw {number} dogs near the river"
        for colour in ("red", "small", "old", "blue", "quick")
        for number in range(20)
    ]
    model = (
        "recipe=gpt2_wikitext",
        "model=gpt2_tiny",
        "model.config.vocab_size=20000",
        "task.block_size=32",
        "train.eval_micro_batch_size=8",
    )
    peaks = []
    for times in (1, 8):
        rows = tmp_path / f"rows_{times}.txt"
        rows.write_text("\n".join(lines * times) + "\n")
        files = ("dataset=files", f'dataset.train="{rows}"', f'dataset.validation="{rows}"')
        ended = real_run(*model, *files, "mode=evaluate", "launcher=ddp", run_dir=tmp_path / str(times))
        assert ended.returncode == 0, ended.stderr
        peaks.append(max(ended.record["peak_memory_bytes"]))
    assert peaks[1] - peaks[0] < 50_000_000
