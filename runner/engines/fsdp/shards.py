"""Checkpoints of sharded training state: files that any number of ranks can take up.

A tensor is cut along its first dimension, so the files of N ranks hold consecutive rows, and a rank reads the rows that
are its own now out of as many files as hold some. torch's distributed checkpoint does the same, but raises on the rank
whose disk is full while the others wait for it; here the writer keeps the error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.distributed.tensor import DTensor, Shard

from runner.engines.rank import Prepared, RankError, StateWriter

Tensors = dict[str, torch.Tensor]


def save(accelerator: Accelerator, prepared: Prepared, writer: StateWriter, full: bool) -> None:
    """Write `shard_R_of_N.pt`: this rank's rows, or on rank 0 all of them. Collective."""
    parameters = _trained(prepared)
    states = prepared.base_optimizer.state
    content: dict[str, Any] = {
        "weights": {name: _stored(parameter, full) for name, parameter in parameters.items()},
        "optimizer": {
            name: {key: _stored(value, full) for key, value in states.get(parameter, {}).items()}
            for name, parameter in parameters.items()
        },
        "buffers": dict(prepared.bare.named_buffers()),
        "groups": [
            {key: value for key, value in group.items() if key != "params"}
            for group in prepared.base_optimizer.param_groups
        ],
        "scaler": accelerator.scaler.state_dict() if accelerator.scaler is not None else None,
    }
    shard, count = (0, 1) if full else own_shard(next(iter(parameters.values())))
    # Groups that shard among themselves hold the same: the first one writes.
    if accelerator.is_main_process or (not full and accelerator.process_index < count):
        writer.save(content, f"shard_{shard}_of_{count}.pt")


def load(accelerator: Accelerator, prepared: Prepared, folder: Path) -> None:
    """Take up this rank's rows; nothing in the files can be executed."""
    files = sorted(folder.glob("shard_*_of_*.pt"), key=lambda path: int(path.stem.split("_")[1]))
    if not files:
        raise RankError(f"there are no shards in {folder}")
    contents = [torch.load(path, map_location="cpu", weights_only=True, mmap=True) for path in files]
    first, optimizer = contents[0], prepared.base_optimizer
    parameters = _trained(prepared)
    for name, parameter in parameters.items():
        with torch.no_grad():
            _local(parameter).copy_(_rows([content["weights"][name] for content in contents], parameter))
    for name, buffer in prepared.bare.named_buffers():
        buffer.copy_(first["buffers"][name])
    for group, saved in zip(optimizer.param_groups, first["groups"], strict=True):
        group.update(saved)
    for name, parameter in parameters.items():
        states = {key: [content["optimizer"][name][key] for content in contents] for key in first["optimizer"][name]}
        if states:
            optimizer.state[parameter] = {key: _state(values, parameter) for key, values in states.items()}
    if first["scaler"] is not None and accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(first["scaler"])


def _trained(prepared: Prepared) -> dict[str, torch.nn.Parameter]:
    """Frozen weights are in no checkpoint: they are loaded or drawn as at the start."""
    return {name: parameter for name, parameter in prepared.bare.named_parameters() if parameter.requires_grad}


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _stored(value: object, full: bool) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    whole = value.full_tensor() if full and isinstance(value, DTensor) else _local(value)
    return whole.detach().cpu().clone()  # a shard is a view of a padded buffer: only its rows are written


def own_shard(parameter: torch.Tensor) -> tuple[int, int]:
    """Which of how many shards this rank holds."""
    assert isinstance(parameter, DTensor)
    dimension = next(index for index, placement in enumerate(parameter.placements) if isinstance(placement, Shard))
    return parameter.device_mesh.get_local_rank(dimension), parameter.device_mesh.size(dimension)


def _rows(parts: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """This rank's rows of a tensor that the files hold part by part: torch cuts rows into chunks of equal size."""
    assert isinstance(like, DTensor)
    shard, count = own_shard(like)
    chunk = -(-like.shape[0] // count)
    whole = torch.cat(parts) if len(parts) > 1 else parts[0]
    return whole[shard * chunk : (shard + 1) * chunk]


def _state(values: list[Any], parameter: torch.Tensor) -> object:
    """An optimizer state: moments are sharded like their parameter, counters are whole."""
    first = values[0]
    if not isinstance(first, torch.Tensor) or first.ndim == 0:
        return first.clone() if isinstance(first, torch.Tensor) else first
    assert isinstance(parameter, DTensor)
    rows = _rows(values, parameter).to(parameter.to_local().device).clone()
    return DTensor.from_local(
        rows, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )
