"""The final model: whole weights from every engine, read back and compared before the run counts as completed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from runner.engines.rank import Prepared, RankEngine

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class SaveError(RuntimeError):
    """The saved weights are not the model's."""


def save_model(engine: RankEngine, prepared: Prepared, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights (safetensors), configuration and tokenizer for `from_pretrained`.

    All ranks take part: partitioned weights are gathered. The folder appears only when it is complete.

    Raises:
        SaveError: when names or shapes in the file differ from the model's.
    """
    state = engine.whole_state(prepared)
    if engine.accelerator.is_main_process:
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        bare: PreTrainedModel = prepared.bare  # type: ignore[assignment]
        bare.save_pretrained(partial, state_dict=state, safe_serialization=True)
        tokenizer.save_pretrained(partial)
        check_saved(partial, whole_shapes(engine, prepared.bare))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    engine.accelerator.wait_for_everyone()


def whole_shapes(engine: RankEngine, model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter, also of partitioned ones."""
    return {name: engine.whole_shape(parameter) for name, parameter in model.named_parameters()}


def parameter_count(engine: RankEngine, model: torch.nn.Module) -> int:
    """Elements of all parameters, over all ranks."""
    return sum(torch.Size(shape).numel() for shape in whole_shapes(engine, model).values())


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
