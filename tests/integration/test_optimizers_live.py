"""Every optimizer under every launcher that takes it: the same losses and learning rates as under DDP. Real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.soak

SETTINGS = (
    "train.max_steps=6",
    "train.log_every=1",
    "train.save_model=false",
    "train.evaluate_every_epoch=false",
    "dataset.max_train_rows=192",
    "dataset.max_validation_rows=8",
    "scheduler=polynomial",
    "scheduler.warmup_ratio=0.2",
    "optimizer.lr=1e-3",
)
WHOLE = ("zero_stage=0",)  # of the others only the launchers that leave tensors whole take muon and the like
CUT = (*WHOLE, "zero_stage=2", "zero_stage=3 zero.stage3_param_persistence_threshold=0")
FURTHER = ("lion", "muon", "adafactor", "adamw_8bit")


@pytest.mark.parametrize(
    ("optimizer", "others"),
    [
        ("sgd", (*CUT, "launcher=fsdp")),
        *(pytest.param(name, CUT if name == "lion" else WHOLE, marks=pytest.mark.variant) for name in FURTHER),
    ],
)
def test_launchers_agree(optimizer, others, real_run, tmp_path: Path):
    if optimizer in ("lion", "adamw_8bit"):
        pytest.importorskip("bitsandbytes")
    chosen = (f"optimizer={optimizer}", *SETTINGS)
    ddp = real_run("launcher=ddp", *chosen, run_dir=tmp_path / "ddp")
    assert ddp.returncode == 0, ddp.text
    # ⌈0.2 · 6⌉ = 2 steps of warm-up, then (1 − (k − 2) / 4)²
    expected = [0.0, 0.5, 1.0, 0.5625, 0.25, 0.0625]
    assert [line["learning_rate"] for line in ddp.steps] == pytest.approx([1e-3 * factor for factor in expected])
    for index, other in enumerate(others):
        result = real_run(*other.split(), *chosen, run_dir=tmp_path / str(index))
        assert result.returncode == 0, result.text
        for mine, theirs in zip(result.steps, ddp.steps, strict=True):
            assert mine["learning_rate"] == pytest.approx(theirs["learning_rate"], rel=1e-12), other
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4), (other, mine["step"])
        assert result.record["observed"]["optimizer_class"] == ddp.record["observed"]["optimizer_class"]
