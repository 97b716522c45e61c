"""Weights that DeepSpeed's AutoTP has split over a group of ranks, inside a rank.

DeepSpeed's own way to whole weights (`GatherReplacedLayerParams`) puts them into the parameters and cuts them again, so
that they leave the flat buffers of ZeRO 1 and 2; here they are copied, and the parameters stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from deepspeed.checkpoint.constants import DS_AUTOTP_UC_META
from deepspeed.utils import groups

from runner.engines.rank import RankError


def _split(parameter: torch.nn.Parameter) -> dict[str, Any] | None:
    """What DeepSpeed noted of a parameter that is split: dimension, sizes of the parts, whole shape."""
    noted: dict[str, Any] | None = getattr(parameter, DS_AUTOTP_UC_META, None)
    return noted if noted is not None and noted.get("partition_dim") is not None else None


def whole_shape(parameter: torch.nn.Parameter) -> tuple[int, ...] | None:
    """Shape of the whole weight; None where it is not split."""
    noted = _split(parameter)
    return tuple(noted["original_shape"]) if noted is not None else None


def gathered(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The whole weight out of this rank's part and those of its group; itself where it is not split. Collective."""
    noted = _split(parameter)
    if noted is None:
        return parameter
    part = parameter.detach().contiguous()
    parts = [torch.empty_like(part) for _ in range(groups.get_tensor_model_parallel_world_size())]
    dist.all_gather(parts, part, group=groups.get_tensor_model_parallel_group())
    return torch.cat(parts, dim=noted["partition_dim"])


def check_split(model: torch.nn.Module, ranks: int) -> None:
    """Compare what each rank holds of the weights with what was asked for.

    Raises:
        RankError: where nothing is split, or not into `ranks` equal parts.
    """
    split = [(name, parameter) for name, parameter in model.named_parameters() if _split(parameter) is not None]
    if not split:
        raise RankError("asked for tensor parallelism, but DeepSpeed has split no weight")
    for name, parameter in split:
        whole = whole_shape(parameter)
        own = getattr(parameter, "ds_numel", parameter.numel())
        if whole is None or own * ranks != torch.Size(whole).numel():
            raise RankError(f"asked for {ranks} parts of {name} of shape {whole}, this rank holds {own} elements")
