"""The final model: whole weights from every engine, read back and compared before the run counts as completed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from runner.adapters import adapter_of
from runner.adapters.folder import name_base
from runner.config.sequence_limits import ADAPTER_BASE
from runner.engines.rank import Prepared, RankEngine
from runner.recipe import Recipe
from runner.train import assets
from runner.train.context import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SaveError(RuntimeError):
    """The saved weights are not the model's."""


def save_model(engine: RankEngine, prepared: Prepared, task: Task, folder: Path) -> None:
    """Write weights (safetensors), configuration and tokenizer for `from_pretrained`; of a run with an adapter the
    adapter alone, in peft's form.

    All ranks take part: partitioned weights are gathered. The folder appears only when it is complete.

    Raises:
        SaveError: when names or shapes in the file differ from the model's.
    """
    adapter = adapter_of(engine.config)
    state = adapter.gathered(engine, prepared)
    if engine.accelerator.is_main_process:
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        adapter.write(prepared.bare, state, partial)
        task.tokenizer.save_pretrained(partial)
        check_saved(partial, adapter.saved_shapes(prepared.bare, whole_shapes(engine, prepared.bare)))
        if adapter.label:
            with engine.building():
                save_base(task.recipe, task.tokenizer, partial, folder)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    engine.accelerator.wait_for_everyone()


def save_base(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, adapter: Path, final: Path) -> None:
    """Write into an adapter's folder which model it belongs to; random frozen weights lie nowhere else, and are put
    beside it.

    Args:
        final: where the folder will lie.
    """
    model = recipe.config.model
    if model.init != "random":
        source = assets.model_source(model)
        name_base(adapter, source, model.revision if source == model.hub_id else None)
        return
    base, _ = assets.base_model(recipe, tokenizer)
    base.save_pretrained(adapter / ADAPTER_BASE)
    name_base(adapter, str(final / ADAPTER_BASE), None)


def whole_shapes(engine: RankEngine, model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter, also of partitioned ones."""
    return {name: engine.whole_shape(parameter) for name, parameter in model.named_parameters()}


def parameter_count(engine: RankEngine, model: torch.nn.Module) -> int:
    """Elements of all parameters, over all ranks; of packed weights the elements that they stand for."""
    return sum(_elements(engine, parameter) for parameter in model.parameters())


def trained_count(engine: RankEngine, model: torch.nn.Module) -> int:
    """Elements of the parameters that are trained, over all ranks."""
    return sum(_elements(engine, parameter) for parameter in model.parameters() if parameter.requires_grad)


def _elements(engine: RankEngine, parameter: torch.nn.Parameter) -> int:
    packed = getattr(parameter, "quant_state", None)
    return torch.Size(packed.shape if packed is not None else engine.whole_shape(parameter)).numel()


def check_saved(folder: Path, expected: dict[str, tuple[int, ...]]) -> None:
    """Compare names and shapes in the safetensors files with the model's (tied weights stand once)."""
    from safetensors import safe_open

    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    wrong = sorted(name for name, shape in expected.items() if found.get(name) != shape)
    if wrong:
        raise SaveError(
            f"saved weights are incomplete: {', '.join(wrong[:5])} ({len(wrong)} of {len(expected)} tensors)"
        )
