"""A user's own DeepSpeed JSON: number forms, batches, owners, `auto`. Refusals in process, runs on real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from runner.errors import RequestError
from tests.conftest import CASES

CONF = CASES / "conf"
FILES = ("dataset=files", f"dataset.train={CASES}/data/cls_train.csv", f"dataset.validation={CASES}/data/cls_eval7.csv")
ONE = (*FILES, "launcher.num_processes=1", "train.max_steps=2", "train.log_every=1", "train.save_model=false")


def checked(*overrides: str):
    from runner.compose import compose_run
    from runner.preflight.check import check

    return check(compose_run(list(overrides)), starting=False)


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ("ds_batch_bad.json",),
            ["train_batch_size=64", "train_micro_batch_size_per_gpu=2 × gradient_accumulation_steps=4 = 8"],
        ),
        (
            ("ds_batch_ok.json", "train.gradient_accumulation_steps=2"),
            ["train.gradient_accumulation_steps=2", "gradient_accumulation_steps=4"],
        ),
        (("ds_warmup_zero.json",), ["scheduler.params.warmup_num_steps=0"]),
        (("ds_owns_optimizer.json", "optimizer.owner=client"), ["optimizer.owner=client", "has a optimizer block"]),
        (("ds_batch_ok.json", "optimizer.owner=deepspeed"), ["optimizer.owner=deepspeed", "has no optimizer block"]),
        (("ds_batch_ok.json", "zero_stage=3"), ["zero_stage=3", "zero_optimization.stage=2"]),
    ],
)
def test_contradictions_name_both_values(overrides, parts):
    file, *rest = overrides
    with pytest.raises(RequestError) as refused:
        checked(*FILES, f"launcher.config_file={CONF}/{file}", "launcher.num_processes=1", *rest)
    for part in parts:
        assert part in str(refused.value)


def test_text_is_converted_or_refused(tmp_path: Path):
    """The text "2" is read as 2, with a notice; "true" is refused: DeepSpeed takes any text for true."""
    run = checked(*FILES, f"launcher.config_file={CONF}/ds_batch_strings.json", "launcher.num_processes=1")
    assert (run.config.train.micro_batch_size, run.config.train.gradient_accumulation_steps) == (2, 4)
    assert sum("text was read as the number" in notice.why for notice in run.notices) == 2
    wrong = tmp_path / "ds.json"
    wrong.write_text(
        json.dumps(
            {
                "bf16": {"enabled": "true"},
                "zero_optimisation": {"stage": 2},
                "zero_optimization": {"stage": 2, "reduce_buket_size": 1},
            }
        )
    )
    with pytest.raises(RequestError) as refused:
        checked(*FILES, f"launcher.config_file={wrong}")
    for part in ("bf16.enabled", "did you mean zero_optimization?", "did you mean reduce_bucket_size?"):
        assert part in str(refused.value)


def test_blocks_of_the_wrong_shape_are_named(tmp_path: Path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": 2, "optimizer": "adam", "bf16": True, "scheduler": []}))
    with pytest.raises(RequestError) as refused:
        checked(*FILES, f"launcher.config_file={file}")
    assert [problem.key for problem in refused.value.problems] == [
        "zero_optimization",
        "optimizer",
        "scheduler",
        "bf16",
    ]


def test_no_auto_is_left(tmp_path: Path, run_cli):
    """Every `auto` is filled with what runs."""
    done = run_cli(
        "render",
        *FILES,
        f"launcher.config_file={CONF}/ds_all_auto.json",
        "scheduler.warmup_steps=2",
        "train.micro_batch_size=4",
    )
    assert done.returncode == 0, done.stderr
    text = (done.run_dir / "ds_config.json").read_text()
    assert "auto" not in text
    filled = json.loads(text)
    assert filled["train_batch_size"] == 8  # 4 rows × 1 × 2 ranks
    assert filled["gradient_clipping"] == 1.0
    assert filled["optimizer"]["params"]["lr"] == 0.001
    assert filled["scheduler"]["params"]["total_num_steps"] == 12  # 32 rows / 8 = 4 steps, 3 epochs
    assert filled["scheduler"]["params"]["warmup_type"] == "linear"
    assert filled["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True


def test_an_auto_that_nothing_can_fill_is_refused_by_name(tmp_path: Path):
    file = tmp_path / "ds.json"
    file.write_text(
        json.dumps({"zero_optimization": {"stage": 2}, "flops_profiler": {"enabled": True, "profile_step": "auto"}})
    )
    with pytest.raises(RequestError, match=r"flops_profiler\.profile_step=auto"):
        checked(*FILES, f"launcher.config_file={file}")


@pytest.mark.parametrize(
    ("file", "owners"),
    [
        ("ds_batch_ok.json", ("client", "client")),
        ("ds_owns_optimizer.json", ("deepspeed", "client")),
        ("ds_owns_both.json", ("deepspeed", "deepspeed")),
        ("ds_owns_scheduler_only.json", ("client", "deepspeed")),
        ("ds_z3_no_gather.json", ("client", "client")),
        ("ds_all_auto.json", ("deepspeed", "deepspeed")),
    ],
)
def test_presence_of_a_block_decides_who_owns_it(file, owners, real_run, tmp_path: Path):
    """On real ranks: each runs, with the same learning rates: 2 steps of a linear schedule without warm-up."""
    result = real_run(*ONE, "scheduler.warmup_steps=0", f"launcher.config_file={CONF}/{file}", run_dir=tmp_path / "run")
    assert result.returncode == 0, result.text
    config = result.record["config"]
    assert (config["optimizer"]["owner"], config["scheduler"]["owner"]) == owners
    assert [line["learning_rate"] for line in result.steps] == [1e-3, 0.5e-3]


def test_accumulation_means_the_same_for_every_launcher(real_run, tmp_path: Path):
    """32 rows, micro batch 2, one rank: 16 batches; 4 accumulated: 4 steps; 3 accumulated: ceil(16 / 3) = 6."""
    for launcher in ("ddp", "deepspeed"):
        for accumulation, steps in ((4, 4), (3, 6)):
            result = real_run(
                *FILES, f"launcher={launcher}", "launcher.num_processes=1", "train.micro_batch_size=2",
                f"train.gradient_accumulation_steps={accumulation}",
                "train.epochs=1", "train.save_model=false", "scheduler.warmup_steps=0",
                run_dir=tmp_path / f"{launcher}{accumulation}",
            )  # fmt: skip
            assert result.returncode == 0, result.text
            assert result.record["optimizer_steps"] == steps
            assert result.record["samples_seen"] == 32
            assert result.record["global_batch_size"] == 2 * accumulation


@pytest.mark.parametrize("spelling", ["1e-5", "1E-5", "'1e-5'", "1.0e-5", ".00001"])
def test_numbers_are_numbers_wherever_they_are_written(spelling, run_cli):
    """Whatever the spelling, plain loaders read numbers back from the rendered files."""
    done = run_cli("render", f"optimizer.lr={spelling}", "zero.reduce_bucket_size=5e8")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((done.run_dir / "config.yaml").read_text())["optimizer"]["lr"] == 1e-5
    rendered = json.loads((done.run_dir / "ds_config.json").read_text())
    assert rendered["optimizer"]["params"]["lr"] == 1e-5
    assert rendered["zero_optimization"]["reduce_bucket_size"] == 500_000_000
    assert isinstance(rendered["zero_optimization"]["reduce_bucket_size"], int)
