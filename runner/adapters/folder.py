"""A saved adapter: `adapter_model.safetensors` and `adapter_config.json` in peft's form; the model's own configuration
lies in `base/`, so that the folder alone says how the model is built.
"""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from runner.adapters.base import Shape
from runner.config.sequence_limits import ADAPTER_BASE, ADAPTER_FILE

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel


class BaseMissing(RuntimeError):
    """The model that an adapter belongs to is not there."""


def write_adapter(model: torch.nn.Module, state: dict[str, torch.Tensor], folder: Path) -> None:
    """Write peft's files, and the configuration of the model without its quantisation."""
    adapted: PeftModel = model  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft looks for the base's vocabulary on the hub, and warns where it is not
        adapted.save_pretrained(str(folder), state_dict=state, safe_serialization=True, save_embedding_layers=False)
    settings = copy.deepcopy(adapted.config)
    if hasattr(settings, "quantization_config"):
        del settings.quantization_config
    settings.save_pretrained(folder / ADAPTER_BASE)


def name_base(folder: Path, source: str | None, revision: str | None) -> None:
    """Write the model that the adapter belongs to into its configuration: peft writes what it was called in memory."""
    file = folder / ADAPTER_FILE
    content = json.loads(file.read_text(encoding="utf-8"))
    content |= {"base_model_name_or_path": source, "revision": revision}
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def shapes_in_file(model: torch.nn.Module, shapes: dict[str, Shape]) -> dict[str, Shape]:
    """Shapes of what is trained, by the names peft saves them under.

    Raises:
        ValueError: where peft would leave out something that was trained.
    """
    import torch
    from peft import get_peft_model_state_dict

    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    empty = {name: torch.empty(shapes[name], device="meta") for name in sorted(trained)}
    named = get_peft_model_state_dict(model, state_dict=empty, save_embedding_layers=False)
    if len(named) != len(trained):
        raise ValueError(f"{len(trained)} tensors were trained, peft saves {len(named)}")
    return {name: tuple(tensor.shape) for name, tensor in named.items()}


def base_of(folder: Path) -> tuple[str, str | None]:
    """Folder or hub name of the model that an adapter belongs to, and its revision.

    Raises:
        BaseMissing: where its configuration names none that is there.
    """
    content = json.loads((folder / ADAPTER_FILE).read_text(encoding="utf-8"))
    source, inside = content.get("base_model_name_or_path"), folder / ADAPTER_BASE
    if next(inside.glob("*.safetensors"), None):
        return str(inside), None
    if not source:
        raise BaseMissing(f"{folder / ADAPTER_FILE} names no base model (base_model_name_or_path)")
    if Path(source).is_absolute() and not Path(source).is_dir():
        raise BaseMissing(f"{folder / ADAPTER_FILE} names a base model that is not there: {source}")
    return str(source), content.get("revision")


def merged(base: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The whole model with the adapter added to its weights: a plain model of transformers.

    Args:
        base: the model that the adapter belongs to, in full precision.
    """
    from peft import PeftModel

    whole: PreTrainedModel = PeftModel.from_pretrained(base, str(folder)).merge_and_unload()  # type: ignore[operator]
    whole.requires_grad_(True)  # peft has frozen it
    return whole
