"""How many parameters a low-rank adapter has, from the facts of the architecture; nothing is built."""

from __future__ import annotations

from typing import Any

from runner.adapters.config import adapter_section
from runner.config.schema import RunConfig
from runner.config.sequence_limits import architecture_facts


def trained_parameters(config: RunConfig, parameters: int) -> int:
    """An upper bound for the free space that checkpoints need: r × (inputs + outputs) of every layer's matrices.

    Modules that are trained whole are counted as the table of embeddings, which is the largest they can be.
    """
    section, facts = adapter_section(config), architecture_facts(config.model)
    hidden = _first(facts, "hidden_size", "d_model", "n_embd")
    layers = _first(facts, "num_hidden_layers", "num_layers", "n_layer", "encoder_layers")
    if not hidden or not layers:
        return parameters
    inner = _first(facts, "intermediate_size", "d_ff", "n_inner", "encoder_ffn_dim") or 4 * hidden
    layers += _first(facts, "decoder_layers", "num_decoder_layers") or 0
    attention, feed_forward = 12 * hidden, 3 * (hidden + inner)  # up to six matrices of attention, three behind it
    whole = len(section.modules_to_save) * hidden * (_first(facts, "vocab_size") or hidden)
    return min(parameters, section.r * layers * (attention + feed_forward) + whole)


def _first(facts: dict[str, Any], *names: str) -> int | None:
    return next((int(facts[name]) for name in names if isinstance(facts.get(name), int)), None)
