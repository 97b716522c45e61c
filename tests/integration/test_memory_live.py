"""The estimate against live tensors: two gloo ranks, DDP and ZeRO 0–3; fp32 with a tiny and a 100 M-parameter model,
bf16 with the tiny one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from workloads import Buckets, made

from runner.memory.estimate import estimate
from runner.memory.facts import Architecture
from runner.memory.workload import Workload

TINY = {"model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 501, "n_positions": 32}
# 12 layers of width 768: 85 M; embeddings of 19,500 + 64 words: 15 M.
HUNDRED_MILLION = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "vocab_size": 19_500,
    "n_positions": 64,
}
METHODS = ("ddp", "fsdp", "zero0", "zero1", "zero2", "zero3")
ZERO = {
    "reduce_bucket_size": 20_000_000,
    "allgather_bucket_size": 20_000_000,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "stage3_param_persistence_threshold": 1000,
    "sub_group_size": 30_000_000,
}
KILL_AFTER_SECONDS = 240  # about 25 s on two idle cores


def _start(rank: int, request: dict[str, Any], port: int, world: int) -> subprocess.Popen[str]:
    environment = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, str(Path(__file__).with_name("memory_rank.py")), json.dumps(request)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def live_bytes(
    facts: dict[str, Any], precision: str, folder: Path, methods: tuple[str, ...] = METHODS, world: int = 2
) -> list[dict[str, dict[str, int]]]:
    """Per rank, per method, bytes of live tensors by kind."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    request = {"facts": facts, "zero": ZERO, "methods": methods, "precision": precision, "folder": str(folder)}
    ranks = [_start(rank, request, port, world) for rank in range(world)]
    try:
        for process in ranks:
            _, errors = process.communicate(timeout=KILL_AFTER_SECONDS)
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in ranks:
            process.kill()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(
    scope="module",
    params=[(TINY, "fp32"), (TINY, "bf16"), pytest.param((HUNDRED_MILLION, "fp32"), marks=pytest.mark.soak)],
    ids=["tiny-fp32", "tiny-bf16", "100M-fp32"],
)
def measured(
    request: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], str, list[dict[str, dict[str, int]]]]:
    facts, precision = request.param
    return facts, precision, live_bytes(facts, precision, tmp_path_factory.mktemp("ranks"))


def workload(facts: dict[str, Any], method: str, precision: Any = "fp32") -> Workload:
    """The same run as the ranks', as the estimate sees it."""
    launcher, stage = (method, 0) if method in ("ddp", "fsdp") else ("deepspeed", int(method[-1]))
    buckets = Buckets(**ZERO)
    return made(
        Architecture.of("causal_lm", facts),
        micro_batch_size=2,
        source_length=16,
        precision=precision,
        device="cpu",
        launcher=launcher,
        zero_stage=stage,
        buckets=buckets,
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rank", [0, 1])
def test_states_within_two_percent(measured: Any, method: str, rank: int) -> None:
    facts, precision, live = measured
    found = estimate(workload(facts, method, precision), rank)
    predicted = {
        name: found.largest_of(name) for name in ("parameters", "gradients", "optimizer_states", "master_weights")
    }
    assert min(live[rank][method][name] for name in ("parameters", "gradients", "optimizer_states")) > 0
    assert (live[rank][method]["master_weights"] > 0) == (
        method in ("zero1", "zero2", "zero3") or (precision, method) == ("bf16", "zero0")
    )
    for name, size in live[rank][method].items():
        assert predicted[name] == pytest.approx(size, rel=0.02), (method, name)


@pytest.mark.soak
def test_hybrid_shards_within_two_percent(tmp_path: Path) -> None:
    """Four ranks in groups of two: FSDP cuts by two; ZeRO-3 by four, with a second copy of the weights by two."""
    methods = ("fsdp_hybrid", "zero3_hybrid")
    live = live_bytes(TINY, "fp32", tmp_path, methods, world=4)
    for method in methods:
        plain = workload(TINY, method.removesuffix("_hybrid"))
        split = replace(plain, layout=replace(plain.layout, hybrid_shard=2), num_processes=4)
        found = estimate(split)
        for rank in range(4):
            for name in ("parameters", "gradients", "optimizer_states", "master_weights"):
                assert found.largest_of(name) == pytest.approx(live[rank][method][name], rel=0.02), (method, name)
    more = estimate(split).largest_of("gathered_parameters") - estimate(replace(plain, num_processes=4)).largest_of(
        "gathered_parameters"
    )
    assert live[0]["zero3_hybrid"]["second_copy"] == pytest.approx(more, rel=0.02)


LLAMA = {
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 501,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}


@pytest.mark.soak
def test_states_of_ranks_that_share_layers_within_two_percent(tmp_path: Path) -> None:
    """Four ranks, two of which share every layer: an untied Llama, whose output layer is cut by words."""
    methods = ("zero1_tensor", "zero2_tensor", "zero3_tensor")
    live = live_bytes(LLAMA, "fp32", tmp_path, methods, world=4)
    for method in methods:
        plain = workload(LLAMA, method.removesuffix("_tensor"))
        split = replace(plain, layout=replace(plain.layout, tensor=2), num_processes=4)
        for rank in range(4):
            found = estimate(split, rank)
            for name in ("parameters", "gradients", "optimizer_states", "master_weights"):
                assert found.largest_of(name) == pytest.approx(live[rank][method][name], rel=0.02), (method, rank, name)


def test_the_larger_model_has_about_100_million_parameters() -> None:
    assert 95e6 < estimate(workload(HUNDRED_MILLION, "ddp")).num_parameters < 105e6


@pytest.mark.parametrize("facts", [TINY, HUNDRED_MILLION], ids=["tiny", "100M"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_within_five_percent_of_a_real_forward(facts: dict[str, Any], checkpointing: bool) -> None:
    """The same hooks on a real CPU forward pass of the real model, at a batch size that no probe used."""
    from memory_rank import build

    import runner.memory.activations as counting

    wanted = made(
        Architecture.of("causal_lm", facts),
        micro_batch_size=5,
        source_length=24,
        device="cpu",
        gradient_checkpointing=checkpointing,
    )
    model = build(facts)
    saved = counting.SavedTensors(counting._resident(model), facts["vocab_size"])
    batch = counting.batch_tensors(wanted.architecture, 5, 24, 0, device="cpu")
    with counting.checkpointing(model) if checkpointing else contextlib.nullcontext():
        counting.saved_in_forward(model, batch, saved, contextlib.nullcontext(), upcast_outputs=False)
    assert counting.activations(wanted).total == pytest.approx(saved.bytes_total, rel=0.05)
