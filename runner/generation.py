"""Generation by beam search without work whose result is known."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from runner.regular_files import read_regular

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig

    from runner.recipe import Recipe

OVERRULED = ("max_new_tokens", "min_new_tokens", "max_time", "temperature", "top_k", "top_p", "num_return_sequences")
_SAYS_NOTHING = ("transformers_version", "_from_model_config", "use_cache", "output_attentions", "output_hidden_states")


class GeneratingModel(Protocol):
    """What a transformers model with a language-model head offers here; its mixin has no public type for the whole."""

    generation_config: GenerationConfig

    def generate(self, **settings: object) -> torch.Tensor:
        """Token ids, (rows, longest reply)."""


def task_generation(model: GeneratingModel, settings: dict[str, Any]) -> GenerationConfig:
    """The model's generation settings with the task's in their place.

    Keys of the model's folder by which transformers would pass over the task's (`max_new_tokens` over `max_length`) are
    set back to its defaults.
    """
    from transformers import GenerationConfig

    chosen: GenerationConfig = copy.deepcopy(model.generation_config)
    default = GenerationConfig()  # type: ignore[no-untyped-call]
    for name in OVERRULED:
        setattr(chosen, name, getattr(default, name, None))
    for name, value in settings.items():
        setattr(chosen, name, value)
    return chosen


def facts(model: torch.nn.Module, recipe: Recipe) -> dict[str, Any] | None:
    """The settings that `generate` works by, for the record; None for a task that does not generate."""
    settings = recipe.generation_settings()
    if not settings or getattr(model, "generation_config", None) is None:
        return None
    generating = cast(GeneratingModel, model)
    found: dict[str, Any] = json.loads(task_generation(generating, settings).to_json_string())
    return found


def folder_additions(folder: Path, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a model folder's generation_config.json says beside the task's keys and its own token ids.

    Returns:
        Settings that stay in force, and settings that the task overrules.
    """
    try:
        content = json.loads(read_regular(folder / "generation_config.json"))
    except (OSError, ValueError, RecursionError):
        return {}, {}
    if not isinstance(content, dict):
        return {}, {}
    said = {
        name: value
        for name, value in content.items()
        if value is not None and not name.endswith("token_id") and name not in _SAYS_NOTHING
    }
    overruled = {
        name: value
        for name, value in said.items()
        if name in OVERRULED or (name in settings and settings[name] != value)
    }
    return {name: value for name, value in said.items() if name not in overruled and name not in settings}, overruled


@contextlib.contextmanager
def beams_share_source() -> Iterator[None]:
    """Inside, beam search leaves the keys and values of the source where they are.

    After each token it reorders every cache by the beams that were chosen. A row's beams are chosen among its own,
    and all of them look at the same source: reordering its part copies equal tensors onto each other. For a source
    longer than the reply that is most of what is copied. The tokens are the same to the last bit.
    """
    from transformers import EncoderDecoderCache

    before = EncoderDecoderCache.reorder_cache

    def reorder(self: EncoderDecoderCache, beam_idx: torch.LongTensor) -> None:
        self.self_attention_cache.reorder_cache(beam_idx)

    EncoderDecoderCache.reorder_cache = reorder  # type: ignore[method-assign]
    try:
        yield
    finally:
        EncoderDecoderCache.reorder_cache = before  # type: ignore[method-assign]
