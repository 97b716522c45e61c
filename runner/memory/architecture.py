"""The real model class on the meta device: exact parameter shapes without weights."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from runner.memory import pass_cache
from runner.memory.facts import Architecture, ModelFacts, ParameterFact

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@functools.lru_cache(maxsize=3)
def meta_model(architecture: Architecture, dtype: str = "float32") -> PreTrainedModel:
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
                model = autos[architecture.family].from_config(config, dtype=getattr(torch, dtype))  # type: ignore[no-untyped-call]
        except Exception as error:  # facts of a user's config.json may raise anything in a class that is not ours
            raise ValueError(
                f"transformers cannot build a {model_type} from these facts ({type(error).__name__}: "
                f"{next(iter(str(error).splitlines()), '')})"
            ) from error
    training: PreTrainedModel = model.train()
    return training


@functools.lru_cache(maxsize=8)
def model_facts(architecture: Architecture) -> ModelFacts:
    """Parameter shapes and buffers of `architecture`, from the real class on the meta device."""
    return pass_cache.kept(architecture, ModelFacts, lambda: _facts(architecture))


def _facts(architecture: Architecture) -> ModelFacts:
    model = meta_model(architecture)
    parameters = tuple(
        ParameterFact(
            name, tensor.numel(), tensor.ndim >= 2, tensor.shape[0] if tensor.ndim else 1, tuple(tensor.shape)
        )
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
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self._level)
