"""Records and metrics logs for the tests of the report, written into folders as runs would write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner.config.schema import RunConfig

GIB = 2**30
METHODS = {
    "DDP": {"launcher": {"name": "ddp"}},
    "ZeRO-2": {"launcher": {"name": "deepspeed"}, "zero": {"stage": 2}},
    "ZeRO-3 + CPU offload": {
        "launcher": {"name": "deepspeed"},
        "zero": {"stage": 3},
        "offload": {"name": "cpu", "optimizer": "cpu", "params": "cpu"},
    },
}


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of `base` with nested `changes`."""
    result = dict(base)
    for key, value in changes.items():
        result[key] = (
            merged(result[key], value) if isinstance(value, dict) and isinstance(result.get(key), dict) else value
        )
    return result


def record(
    method: str = "DDP", *, micro: int = 8, seed: int = 42, train_seconds: float = 10.0, **changes: Any
) -> dict[str, Any]:
    """A completed record of two ranks and two epochs of 64 rows; `changes` are merged over it."""
    config = RunConfig.model_validate(
        merged(METHODS[method], {"train": {"micro_batch_size": micro, "seed": seed}})
    ).model_dump(mode="json")
    scores = {"f1": 0.8, "accuracy": 0.75}
    epochs = [
        {
            "epoch": epoch,
            "train_seconds": train_seconds,
            "eval_seconds": 1.5,
            "train_samples_per_second": 64 / train_seconds,
            "train_tokens_per_second": 640.0,
            "step_seconds_p50": 0.5,
            "step_seconds_p95": 0.7,
            "train_loss": 0.6,
            "metrics": scores,
        }
        for epoch in (1, 2)
    ]
    base = {
        "schema_version": 1,
        "run_id": f"{method}-{micro}-{seed}".replace(" ", ""),
        "started_at": "2025-01-01T10:00:00Z",
        "ended_at": "2025-01-01T10:01:00Z",
        "status": "completed",
        "reason": None,
        "command": "python -m runner run",
        "overrides": [],
        "note": "",
        "config": config,
        "config_hash": "0" * 64,
        "code": {"git_commit": "a" * 40, "dirty": False},
        "versions": {"torch": "2.7.1", "deepspeed": "0.17.1"},
        "hardware": {"host": "box", "devices": [{"name": "H100"}, {"name": "H100"}]},
        "world_size": 2,
        "global_batch_size": micro * 2,
        "micro_batch_size": micro,
        "gradient_accumulation_steps": 1,
        "num_parameters": 1_000_000,
        "optimizer_steps": 8,
        "samples_seen": 128,
        "data_order_hash": f"order-{seed}",
        "method": method,
        "data": {
            "train": {"rows": 64, "fingerprint": "aa", "generated": False},
            "validation": {"rows": 16, "fingerprint": "bb", "generated": False},
        },
        "observed": {
            "device": "cuda",
            "optimizer_class": "AdamW",
            "optimizer_state_dtype": "float32",
            "parameter_dtype": "float32",
            "activation_dtype": "bfloat16",
            "gradient_dtype": "float32",
            "world_size": 2,
        },
        "epochs": epochs,
        "metrics": scores,
        "best": {"epoch": 2, "metric": "f1", "value": 0.8},
        "phases": {"start": 4.0, "train": 2 * train_seconds, "evaluate": 3.0, "save": 1.0},
        "wall_seconds": 8.0 + 2 * train_seconds,
        "peak_memory_bytes": [2 * GIB, 3 * GIB],
        "memory_prediction": {"per_rank_bytes": [3 * GIB, 3 * GIB], "items": {"parameters": GIB}},
        "cell": None,
        "fit": None,
        "attempts": [],
        "artifacts": {},
    }
    return merged(base, changes)


def repeat(method: str, index: int, train_seconds: float, **changes: Any) -> dict[str, Any]:
    """The `index`-th repeat (from 0) of a sweep's cell, with its own seed."""
    cell = {"hash": f"{method}-cell", "sweep": "s", "repeat": index}
    return record(method, seed=42 + index, train_seconds=train_seconds, cell=cell, **changes)


def write_run(folder: Path, content: dict[str, Any], points: list[dict[str, Any]] | None = None) -> Path:
    """Write record.json, and metrics.jsonl when there are points; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(json.dumps(content), encoding="utf-8")
    if points is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points), encoding="utf-8")
    return folder


def points(steps: int = 8, peak: float = 2e-5, seconds: float = 0.5, floor: float = 0.3) -> list[dict[str, Any]]:
    """A log of a falling loss and a linear learning rate."""
    return [
        {
            "step": step,
            "loss": floor + 0.5 / step,
            "learning_rate": peak * (1 - step / steps),
            "grad_norm": 1.0,
            "seconds": seconds,
            "elapsed_seconds": 5 + seconds * step,
        }
        for step in range(1, steps + 1)
    ]
