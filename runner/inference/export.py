"""A `from_pretrained` folder from a run: its final weights, or any checkpoint of DDP and of every ZeRO stage."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import rundir
from runner.checkpoint.folders import CHECKPOINTS, Checkpoint, checkpoints
from runner.checkpoint.retention import best
from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Names inside a checkpoint, as the rank engines write them.
_REPLICATED, _DEEPSPEED = "model_and_optimizer.pt", "deepspeed"
RUN_CONFIG = "runner_config.yaml"  # the run's configuration beside the weights, for `predict`


def chosen_checkpoint(run_dir: Path, name: str | None, greater_is_better: bool) -> Checkpoint | None:
    """The checkpoint that was asked for: by name, `best` by its metric, else the newest; None for the final weights.

    Raises:
        RequestError: where there is none such, or it is damaged.
    """
    found = checkpoints(run_dir)
    if name is None and (run_dir / "model").is_dir():
        return None
    if name is None or name == "best":
        chosen = best(run_dir, greater_is_better) if name else next(iter(found), None)
    else:
        wanted = Path(name).name
        chosen = next((item for item in found if wanted in (item.path.name, str(item.step))), None)
    if chosen is None:
        known = ", ".join(item.path.name for item in found) or "none"
        why = (
            "no checkpoint knows its metric (checkpoint.keep_best=true keeps them)"
            if name == "best"
            else "there is no such checkpoint"
        )
        raise RequestError(
            Problem("--checkpoint", name, f"{why}; {run_dir / CHECKPOINTS} has {known}", "name one of them")
        )
    damage = chosen.damage()
    if damage is not None:
        raise RequestError(Problem("--checkpoint", chosen.path.name, f"it is damaged ({damage})", "name another one"))
    return chosen


def export(run_dir: Path, checkpoint: Checkpoint | None, to: Path) -> None:
    """Write weights (safetensors), configuration, tokenizer and the run's configuration; the folder appears when
    complete.

    Raises:
        RequestError: where the folder exists.
        OSError: where it cannot be written.
    """
    if to.exists():
        raise RequestError(Problem("--to", to, "this exists already", "name a new folder"))
    config = rundir.read_config(run_dir)
    partial = to.with_name(f".{to.name}.{os.getpid()}.partial")
    try:
        if checkpoint is None:
            shutil.copytree(run_dir / "model", partial)
        else:
            _write_model(config, checkpoint, partial)
        shutil.copyfile(run_dir / rundir.CONFIG_FILE, partial / RUN_CONFIG)
        os.replace(partial, to)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_model(config: RunConfig, checkpoint: Checkpoint, folder: Path) -> None:
    from runner.recipe import load_recipe
    from runner.train.assets import build_model, build_tokenizer
    from runner.train.saving import check_saved

    tokenizer = build_tokenizer(config)
    model, _ = build_model(load_recipe(config), tokenizer)
    model.load_state_dict(_completed(whole_state(checkpoint), model))
    folder.parent.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    check_saved(folder, {name: tuple(value.shape) for name, value in model.named_parameters()})


def whole_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """The model's weights in fp32 by name, gathered from the ranks' parts."""
    import torch

    replicated = checkpoint.path / _REPLICATED
    if replicated.is_file():
        content: dict[str, Any] = torch.load(replicated, map_location="cpu", weights_only=False)["model"]
        return content
    if checkpoint.manifest.zero_stage == 0:
        parts = sorted((checkpoint.path / _DEEPSPEED).glob("mp_rank_*_model_states.pt"))
        module: dict[str, Any] = torch.load(parts[0], map_location="cpu", weights_only=False)["module"]
        return {name: value.float() if value.is_floating_point() else value for name, value in module.items()}
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    state: dict[str, Any] = get_fp32_state_dict_from_zero_checkpoint(str(checkpoint.path), tag=_DEEPSPEED)
    return state


def _completed(state: dict[str, Any], model: PreTrainedModel) -> dict[str, Any]:
    """With what the checkpoint leaves out because it is the same tensor (tied weights) or no parameter (buffers)."""
    own = model.state_dict()
    by_storage: dict[int, str] = {}
    for name, value in own.items():
        if name in state:
            by_storage.setdefault(value.data_ptr(), name)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    full = {name.removeprefix("module."): value for name, value in state.items()}
    for name, value in own.items():
        if name not in full and value.data_ptr() in by_storage:
            full[name] = full[by_storage[value.data_ptr()]]
        elif name not in full and name not in parameters:
            full[name] = value
    return full
