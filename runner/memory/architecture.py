"""The real model class on the meta device: exact parameter shapes without weights."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from runner.memory.workload import Architecture


@dataclass(frozen=True)
class ParameterFact:
    """One trainable tensor: name, elements, and whether weight decay applies (two dimensions or more)."""

    name: str
    numel: int
    decayed: bool


@dataclass(frozen=True)
class ModelFacts:
    """Parameters in the model's own order (tied weights once), buffers in bytes, largest layer in elements."""

    parameters: tuple[ParameterFact, ...]
    buffer_bytes: int
    vocab_size: int
    max_positions: int | None

    @property
    def numel(self) -> int:
        """Trainable elements."""
        return sum(fact.numel for fact in self.parameters)

    @property
    def largest(self) -> int:
        """Elements of the largest single tensor."""
        return max((fact.numel for fact in self.parameters), default=0)

    def groups(self, split_by_decay: bool) -> list[list[int]]:
        """Elements of each tensor, by optimizer parameter group: decayed first, then the rest."""
        if not split_by_decay:
            return [[fact.numel for fact in self.parameters]]
        halves = [[f.numel for f in self.parameters if f.decayed is wanted] for wanted in (True, False)]
        return [half for half in halves if half]


@functools.lru_cache(maxsize=3)
def meta_model(architecture: Architecture, dtype: str = "float32") -> Any:
    """The model of `architecture`, in training mode, on the meta device (0.1–1 s; no weights are read).

    `dtype` is the torch name of the weights' format.

    Raises ValueError when transformers can build no such model: no such type, no class of the family for it, or facts
    that contradict each other.
    """
    import torch

    facts = architecture.mapping()
    model_type = str(facts.pop("model_type"))
    if architecture.family == "encoder":
        facts["num_labels"] = architecture.num_labels
    for noise in ("architectures", "transformers_version", "_name_or_path", "dtype", "torch_dtype"):
        facts.pop(noise, None)
    with quiet_transformers():
        import transformers

        autos = {
            "encoder": transformers.AutoModelForSequenceClassification,
            "seq2seq": transformers.AutoModelForSeq2SeqLM,
            "causal_lm": transformers.AutoModelForCausalLM,
        }
        try:
            config = transformers.AutoConfig.for_model(model_type, **facts)
            with torch.device("meta"):
                model = autos[architecture.family].from_config(config, dtype=getattr(torch, dtype))
        except Exception as error:  # facts of a user's config.json may raise anything in a class that is not ours
            raise ValueError(
                f"transformers cannot build a {model_type} from these facts ({type(error).__name__}: "
                f"{next(iter(str(error).splitlines()), '')})"
            ) from error
    return model.train()


@functools.lru_cache(maxsize=8)
def model_facts(architecture: Architecture) -> ModelFacts:
    """Parameter shapes and buffers of `architecture`, from the real class on the meta device."""
    model = meta_model(architecture)
    parameters = tuple(
        ParameterFact(name, tensor.numel(), tensor.ndim >= 2)
        for name, tensor in model.named_parameters()
        if tensor.requires_grad
    )
    buffers = sum(tensor.numel() * tensor.element_size() for tensor in model.buffers())
    text = model.config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    return ModelFacts(parameters, buffers, int(getattr(text, "vocab_size", 0) or 0), positions)


class quiet_transformers:
    """Keeps transformers' advice about configurations off the terminal while a model is built."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._level = logging.get_verbosity()
        logging.set_verbosity_error()

    def __exit__(self, *error: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self._level)
