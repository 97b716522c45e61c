"""Older record schemas, brought to the present one before anything else looks at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.report.reading import integer, mapping, number, sequence

CURRENT_SCHEMA_VERSION = 1

_RENAMED_0 = {
    "id": "run_id",
    "start_time": "started_at",
    "end_time": "ended_at",
    "error": "reason",
    "num_processes": "world_size",
    "batch_size": "global_batch_size",
    "micro_batch": "micro_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "parameters": "num_parameters",
    "steps": "optimizer_steps",
    "wall_time": "wall_seconds",
    "scores": "metrics",
}
_RENAMED_EPOCH_0 = {
    "train_time": "train_seconds",
    "eval_time": "eval_seconds",
    "loss": "train_loss",
    "scores": "metrics",
}
_STATUS_0 = {"done": "completed", "error": "failed", "stopped": "preempted"}
_BYTES_PER_MIB = 2**20


def schema_version(raw: Mapping[str, Any]) -> int | None:
    """The record's schema version; None when it names none or something that is no whole number."""
    return integer(raw.get("schema_version"))


def upgrade(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record in the present schema; one of the present version is returned as it is."""
    return _from_version_0(raw) if schema_version(raw) == 0 else raw


def _renamed(raw: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in raw.items()}


def _from_version_0(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Version 0: other key names, `state` for the status, peak memory in MiB, epochs in `epoch_log`."""
    record = _renamed(raw, _RENAMED_0)
    state = record.pop("state", None)
    if isinstance(state, str):
        record["status"] = _STATUS_0.get(state, state)
    record["epochs"] = [_renamed(mapping(epoch), _RENAMED_EPOCH_0) for epoch in sequence(record.pop("epoch_log", None))]
    peaks = [number(value) for value in sequence(record.pop("peak_memory_mib", None))]
    record["peak_memory_bytes"] = [int(value * _BYTES_PER_MIB) for value in peaks if value is not None]
    record["schema_version"] = CURRENT_SCHEMA_VERSION
    return record
