"""A `from_pretrained` folder from a run: its final weights, or any checkpoint of DDP and of every ZeRO stage."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import rundir
from runner.adapters import adapter_of
from runner.adapters.folder import BaseMissing, base_of, merged, name_base
from runner.checkpoint.folders import CHECKPOINTS, Checkpoint, checkpoints
from runner.checkpoint.retention import best
from runner.config.inputs import ModelConfig
from runner.config.schema import RunConfig
from runner.config.sequence_limits import ADAPTER_BASE, config_folder, is_adapter_folder
from runner.errors import Problem, RequestError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

if TYPE_CHECKING:
    import torch
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
            if next((partial / ADAPTER_BASE).glob("*.safetensors"), None):
                name_base(partial, str(to / ADAPTER_BASE), None)
        else:
            _write_model(config, checkpoint, partial, to)
        shutil.copyfile(run_dir / rundir.CONFIG_FILE, partial / RUN_CONFIG)
        os.replace(partial, to)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_model(config: RunConfig, checkpoint: Checkpoint, folder: Path, final: Path) -> None:
    from runner.engines.replicated import load_stored_weights
    from runner.recipe import load_recipe
    from runner.train.assets import build_model, build_tokenizer
    from runner.train.saving import check_saved, save_base

    adapter, recipe = adapter_of(config), load_recipe(config)
    tokenizer = build_tokenizer(config)
    model, _ = build_model(recipe, tokenizer)
    state = whole_state(checkpoint, trained_only=bool(adapter.label))
    # Of a model with frozen weights only what was trained is in a checkpoint: nothing is to be completed.
    load_stored_weights(model, _without_wrapper(state) if adapter.label else _completed(state, model))
    folder.parent.mkdir(parents=True, exist_ok=True)
    trained = {name: item.detach() for name, item in model.named_parameters() if item.requires_grad}
    adapter.write(model, trained if adapter.label else model.state_dict(), folder)
    tokenizer.save_pretrained(folder)
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    check_saved(folder, adapter.saved_shapes(model, shapes))
    if adapter.label:
        save_base(recipe, tokenizer, folder, final)


def merge(run_dir: Path, checkpoint: Checkpoint | None, to: Path) -> None:
    """Write the whole model of a run with an adapter: the adapter added to the weights that it was trained beside.

    Raises:
        RequestError: where the folder exists, the run has no adapter, or its base model is not there.
        OSError: where it cannot be written.
    """
    from transformers import AutoTokenizer

    from runner.recipe import load_recipe

    config = rundir.read_config(run_dir)
    if not adapter_of(config).label:
        fix = f"its weights are whole already: python -m runner export '{run_dir}'"
        raise RequestError(Problem("RUN_DIR", run_dir, "this run has no adapter to merge", fix))
    if to.exists():
        raise RequestError(Problem("--to", to, "this exists already", "name a new folder"))
    with tempfile.TemporaryDirectory() as scratch:
        source = run_dir / "model"
        if checkpoint is not None:
            source = Path(scratch) / "adapter"
            export(run_dir, checkpoint, source)
        partial = to.with_name(f".{to.name}.{os.getpid()}.partial")
        try:
            whole_model(source, load_recipe(config).auto_class, config.model).save_pretrained(partial)
            AutoTokenizer.from_pretrained(source).save_pretrained(partial)  # type: ignore[no-untyped-call]
            shutil.copyfile(run_dir / rundir.CONFIG_FILE, partial / RUN_CONFIG)
            os.replace(partial, to)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def whole_model(folder: Path, auto_class: str, model: ModelConfig) -> PreTrainedModel:
    """The model in a folder, in fp32; an adapter's folder stands for the model with the adapter merged into it.

    Raises:
        RequestError: where an adapter's base model is not there.
    """
    import torch
    import transformers

    kind: type[PreTrainedModel] = getattr(transformers, auto_class)
    if not is_adapter_folder(folder):
        return kind.from_pretrained(folder, trust_remote_code=model.trust_remote_code, dtype=torch.float32)
    settings = transformers.AutoConfig.from_pretrained(config_folder(folder), trust_remote_code=model.trust_remote_code)
    try:
        source, revision = base_of(folder)
        base = kind.from_pretrained(
            source,
            config=settings,
            revision=revision or "main",
            trust_remote_code=model.trust_remote_code,
            use_safetensors=None if model.allow_pickle else True,
            ignore_mismatched_sizes=True,  # a head of another size: the adapter brings its own
            dtype=torch.float32,
        )
    except (BaseMissing, OSError) as error:
        why = f"the model it was trained beside cannot be loaded ({next(iter(str(error).splitlines()), '')})"
        raise RequestError(Problem("RUN_DIR", folder, why, "put it back, or make it reachable")) from None
    return merged(base, folder)


def whole_state(checkpoint: Checkpoint, trained_only: bool = False) -> dict[str, Any]:
    """The model's weights in fp32 by name, gathered from the ranks' parts.

    Args:
        trained_only: whether the checkpoint is of a run with frozen weights, which are not in it.
    """
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

    state: dict[str, Any] = get_fp32_state_dict_from_zero_checkpoint(
        str(checkpoint.path), tag=_DEEPSPEED, exclude_frozen_parameters=trained_only
    )
    return state


def _completed(state: dict[str, Any], model: PreTrainedModel) -> dict[str, Any]:
    """With what the checkpoint leaves out because it is the same tensor (tied weights) or no parameter (buffers)."""
    own = model.state_dict()
    by_storage: dict[int, str] = {}
    for name, value in own.items():
        if name in state:
            by_storage.setdefault(value.data_ptr(), name)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    full = _without_wrapper(state)
    for name, value in own.items():
        if name not in full and value.data_ptr() in by_storage:
            full[name] = full[by_storage[value.data_ptr()]]
        elif name not in full and name not in parameters:
            full[name] = value
    return full


def _without_wrapper(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights by the names of the model inside."""
    return {name.removeprefix("module."): value for name, value in state.items()}
