"""A model with peft's adapter, inside a rank or on the meta device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from runner.adapters.checks import TASK_TYPES
from runner.adapters.config import AdapterConfig

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_OUTPUT = re.compile(r"(^|\.)(lm_head|embed_out)$")


class AdapterError(RuntimeError):
    """The adapter does not fit the model."""


def with_adapter(
    model: PreTrainedModel, section: AdapterConfig, auto_class: str, dora: bool, new: list[str]
) -> PreTrainedModel:
    """A PeftModel in which adapter, named modules and new heads are trained, and nothing else.

    Args:
        new: names of tensors with new random values; the modules that hold them are trained whole.

    Raises:
        AdapterError: for names that the model does not have.
    """
    from peft import LoraConfig, get_peft_model

    whole = [*section.modules_to_save, *_modules_of(model, new)]
    check_names(model, section)
    settings = LoraConfig(
        task_type=TASK_TYPES[auto_class],
        r=section.r,
        lora_alpha=section.alpha,  # type: ignore[arg-type]  # peft divides by the rank, whole or not
        lora_dropout=section.dropout,
        target_modules="all-linear" if section.target_modules == "auto" else list(section.target_modules),
        exclude_modules=whole or None,
        modules_to_save=whole or None,
        bias=section.bias,
        use_rslora=section.rslora,
        use_dora=dora,
        init_lora_weights=True if section.init == "default" else section.init,
    )
    adapted: PreTrainedModel = get_peft_model(model, settings)  # type: ignore[assignment]
    return adapted


def _modules_of(model: PreTrainedModel, new: list[str]) -> list[str]:
    """Modules with new weights; the output head of a language model has none of its own where it is tied."""
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    return sorted({name.rpartition(".")[0] for name in new if name not in tied} - {""})


def check_names(model: PreTrainedModel, section: AdapterConfig) -> None:
    """Every name must be there: of several, peft passes silently over the wrong ones.

    Raises:
        AdapterError: naming the model's linear layers.
    """
    modules = [name for name, _ in model.named_modules()]
    targets = [] if section.target_modules == "auto" else section.target_modules
    linear = {name.rpartition(".")[2] for name, module in model.named_modules() if is_linear(module)}
    for key, names in (("target_modules", targets), ("modules_to_save", section.modules_to_save)):
        for name in names:
            if not any(found == name or found.endswith(f".{name}") for found in modules):
                raise AdapterError(
                    f"adapter.{key}: the model has no module called {name}; its linear layers are "
                    f"{', '.join(sorted(linear))}"
                )
    if _ties_output(model) and any(_OUTPUT.search(name) for name in section.modules_to_save):
        raise AdapterError(
            "adapter.modules_to_save: the output head shares its weights with the embeddings; a copy would be "
            "trained, and the saved model would lose the tie"
        )


def _ties_output(model: PreTrainedModel) -> bool:
    output = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return output is not None and output.weight is model.get_input_embeddings().weight


def is_linear(module: torch.nn.Module) -> bool:
    """Whether it is a matrix product: torch's (bitsandbytes' inherit from it), or GPT-2's."""
    import torch

    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
