"""The largest micro batch, the alternatives, the verb, and predictions in records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from workloads import made

from runner import machine
from runner.cli import estimate as verb
from runner.config.schema import RunConfig
from runner.memory.amounts import parse_bytes
from runner.memory.configured import workload_from_config
from runner.memory.estimate import estimate, predict_for_record
from runner.memory.facts import Architecture
from runner.memory.past_predictions import past_predictions
from runner.memory.search import alternatives, fit, largest_micro_batch
from runner.memory.workload import MeasuredLengths, Workload

MODEL = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 1000, "n_positions": 64}
GIB = 2**30


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.DEVICES_VARIABLE, "[]")
    machine.installed_devices.cache_clear()


@pytest.fixture(autouse=True)
def forget_devices() -> Any:
    yield
    machine.installed_devices.cache_clear()


def small(**changes: Any) -> Workload:
    return made(Architecture.of("causal_lm", MODEL), **({"source_length": 64, "precision": "fp16"} | changes))


def config(**sections: Any) -> RunConfig:
    model = {"name": "x", "family": "causal_lm", "config": MODEL}
    values = {
        "model": model,
        "recipe": {"file": "none.py", "families": ["causal_lm"]},
        "launcher": {"device": "cpu", "num_processes": 2},
    } | sections
    return RunConfig.model_validate(values)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_largest_batch_fits_and_one_more_does_not(stage: int) -> None:
    workload, device = small(zero_stage=stage), 3 * GIB
    rows = largest_micro_batch(workload, device)
    assert rows > 1
    assert (
        estimate(workload.with_batch(rows)).device_bytes_per_rank
        <= device
        < estimate(workload.with_batch(rows + 1)).device_bytes_per_rank
    )


def test_zero_when_one_row_does_not_fit_with_the_reason() -> None:
    largest = fit(small(), GIB // 2)
    assert largest.rows == 0
    assert "one row needs" in largest.reason
    assert "framework overhead" in largest.reason


def test_alternatives_cover_every_stage_offload_and_checkpointing() -> None:
    found = alternatives(small(zero_stage=2), 4 * GIB)
    # DDP; ZeRO-0; two each for 1 and 2; three for 3; all again with checkpointing.
    assert len(found) == 2 * (1 + 1 + 2 + 2 + 3 + 2)  # DDP, ZeRO 0 to 3, FSDP; with and without checkpointing
    assert [each.name for each in found if each.chosen] == ["ZeRO-2"]
    assert all(each.fit is not None and each.fit.reason for each in found)


def test_margin_is_a_tenth_of_the_device() -> None:
    workload = small()
    bare = estimate(replace(workload, margin_fraction=0.0)).device_bytes_per_rank
    assert estimate(workload).device_bytes_per_rank == pytest.approx(bare / 0.9, abs=2)
    assert (
        estimate(workload).allocated_bytes_per_rank
        == estimate(replace(workload, margin_fraction=0.0)).allocated_bytes_per_rank
    )


def test_moments_are_sums_of_their_items() -> None:
    found = estimate(small())
    for moment, size in found.as_dict()["moments"].items():
        assert size == sum(
            item["bytes"]
            for item in found.as_dict()["items"]
            if moment in item["moments"] and item["place"] == "device"
        )
    assert found.device_bytes_per_rank == max(found.as_dict()["moments"].values())


def test_lengths_of_the_data_win_over_the_configured_maximum() -> None:
    configured = workload_from_config(config(task={"block_size": 48}), 2)
    assert (configured.source_length, configured.length_source) == (48, "configured maximum (task.block_size)")
    measured = workload_from_config(
        config(task={"block_size": 48}), 2, MeasuredLengths(31, description="longest of 10 rows")
    )
    assert (measured.source_length, measured.length_source) == (31, "longest of 10 rows")
    assert workload_from_config(config(), 2).length_source.startswith("assumed 128")


def test_accumulation_follows_a_global_batch() -> None:
    workload = workload_from_config(config(train={"micro_batch_size": 4, "global_batch_size": 64}), 2)
    assert workload.gradient_accumulation_steps == 8


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="no model_type"):
        workload_from_config(config(model={"family": "causal_lm", "config": {}}), 2)


def test_prediction_for_a_record_names_every_rank() -> None:
    prediction = predict_for_record(config(task={"block_size": 32}), 2)
    assert len(prediction["per_rank_bytes"]) == 2
    assert prediction["compared_with"] == "resident set"
    assert json.loads(json.dumps(prediction)) == prediction
    assert sum(prediction["categories"].values()) <= max(prediction["per_rank_bytes"])


def test_past_predictions_are_read_from_records(tmp_path: Path) -> None:
    good = {
        "run_id": "a",
        "config": {"launcher": {"name": "ddp"}},
        "memory_prediction": {"per_rank_bytes": [90, 110]},
        "peak_memory_bytes": [100, 88],
    }
    for name, text in (
        ("a", json.dumps(good)),
        ("b", "{not json"),
        ("c", json.dumps({"run_id": "c", "memory_prediction": None})),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(text)
    (found,) = past_predictions([tmp_path, tmp_path / "absent"])
    assert (found.method, found.predicted_bytes, found.measured_bytes) == ("DDP", 110, 100)
    assert found.error == pytest.approx(0.10)


@pytest.mark.parametrize(
    ("text", "number"), [("24GiB", 24 * 2**30), ("80GB", 80 * 10**9), ("1.5 gib", 3 * 2**29), ("4096", 4096)]
)
def test_amounts_of_memory(text: str, number: int) -> None:
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", ["0", "0.0GiB", "lots", "24XB", "-1GiB"])
def test_no_amount_of_memory(text: str) -> None:
    with pytest.raises(ValueError, match="no amount of memory"):
        parse_bytes(text)


@pytest.mark.usefixtures("no_gpu")
def test_the_verb_answers_in_json_for_hardware_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        verb.main(
            [
                "model=deberta_tiny",
                "launcher.num_processes=4",
                "launcher.num_nodes=2",
                "--device-memory",
                "24GiB",
                "--json",
            ]
        )
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["workload"]["device"] == "cuda"
    assert answer["workload"]["world_size"] == 8
    assert answer["device_memory_bytes"] == 24 * GIB
    assert answer["largest_micro_batch"]["rows"] > 0
    assert len(answer["alternatives"]) == 22


@pytest.mark.usefixtures("no_gpu")
def test_the_verb_prints_tables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert verb.main(["model=deberta_tiny"]) == 0
    printed = capsys.readouterr().out
    for words in ("on cpu", "optimizer states", "alternatives at micro batch", "ZeRO-3", "no earlier run"):
        assert words in printed


@pytest.mark.parametrize("arguments", [["--device-memory", "24XB"], ["mdoel=x"], ["zero_stage=7"]])
def test_a_wrong_request_ends_with_2_and_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.strip().splitlines()) == 1


NEVER = {  # what no machine could run → what the answer names
    ("model=bert_base", "task.max_length=999"): ["task.max_length=999", "512 positions"],
    ("model.config.num_attention_heads=0",): ["model.config.num_attention_heads=0", "at least 1"],
    ("zero_stage=2", "offload=cpu"): ["offload=cpu", "zero_stage=3"],
    ("launcher=ddp", "zero_stage=2"): ["zero_stage=2", "launcher=deepspeed"],
    ("model.path=nope",): ["model.path=", "no such folder"],
    ("model=gpt2_tiny",): ["model=gpt2_tiny", "recipe=gpt2_wikitext"],
    ("model.path=nope", "task.max_lenght=3"): ["no such folder", "task.max_lenght=3"],
    ("precision=fp16", "zero_stage=0"): ["zero_stage=0", "zero_stage=1"],
}


@pytest.mark.parametrize("typed", list(NEVER), ids=" ".join)
def test_what_can_never_run_is_refused(typed: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.main([*typed]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert all(line.startswith("error: ") for line in output.err.splitlines())
    assert all(part in output.err for part in NEVER[typed])


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    "typed",
    [
        ("launcher.device=cuda", "precision=bf16", "launcher.num_processes=64", "launcher.num_nodes=4"),
        ("zero_stage=3", "offload=nvme"),
        ("launcher=ddp", "precision=fp16"),
        ("zero_stage=0", "launcher.device=cuda"),  # whatever `precision=auto` is there
    ],
    ids=" ".join,
)
def test_what_only_this_machine_lacks_may_be_asked_about(
    typed: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert verb.main([*typed, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device_bytes_per_rank"] > 0


def test_facts_that_contradict_each_other_are_a_message() -> None:
    broken = Architecture.of("encoder", {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 0})
    with pytest.raises(ValueError, match="cannot build a bert from these facts \\(ZeroDivisionError"):
        estimate(replace(small(), architecture=broken))
    long = Architecture.of("encoder", {"model_type": "bert", "max_position_embeddings": 16})
    with pytest.raises(ValueError, match="128 tokens are more than the model's 16 positions"):
        estimate(replace(small(), architecture=long, source_length=128))
