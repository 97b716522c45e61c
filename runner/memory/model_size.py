"""How many parameters a model has, read off a folder's files or counted roughly from its architecture; no torch."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from runner.config.inputs import ModelConfig
from runner.config.schema import RunConfig
from runner.config.sequence_limits import architecture_facts, is_adapter_folder
from runner.engines import engine_of

LARGEST_HEADER = 100 * 2**20  # bytes; the limit of the safetensors format


def parameter_count(model: ModelConfig) -> int | None:
    """Parameters of the model: exact from the headers of its safetensors files, else from the facts, else None."""
    if model.path and model.init == "pretrained":
        found = _stored(Path(model.path).expanduser())
        if found:
            return found
    facts = architecture_facts(model)
    return _counted(facts) if facts else None


def largest_tensor(model: ModelConfig) -> int:
    """Elements of the largest weight, as far as the facts tell: the table of word embeddings."""
    facts = architecture_facts(model) or {}
    hidden, vocabulary = _first(facts, "hidden_size", "d_model", "n_embd"), _first(facts, "vocab_size")
    return hidden * vocabulary if hidden and vocabulary else 0


def _stored(folder: Path) -> int:
    if is_adapter_folder(folder):
        return 0  # the whole model's weights lie elsewhere
    total = 0
    for path in folder.glob("*.safetensors"):
        try:
            with open(path, "rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > LARGEST_HEADER:
                    return 0
                header = json.loads(file.read(length))
        except (OSError, ValueError, struct.error):
            return 0
        total += sum(_product(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    return total


def _product(shape: list[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _first(facts: dict[str, Any], *names: str) -> int | None:
    return next((int(facts[name]) for name in names if isinstance(facts.get(name), int)), None)


def _counted(facts: dict[str, Any]) -> int | None:
    """Embeddings and the matrices of every layer: within a few percent of the whole for the models bundled here."""
    hidden, vocabulary = _first(facts, "hidden_size", "d_model", "n_embd"), _first(facts, "vocab_size")
    layers = _first(facts, "num_hidden_layers", "num_layers", "n_layer", "encoder_layers")
    if not (hidden and vocabulary and layers):
        return None
    inner = _first(facts, "intermediate_size", "d_ff", "n_inner", "encoder_ffn_dim") or 4 * hidden
    heads, shared = _first(facts, "num_attention_heads", "num_heads") or 1, _first(facts, "num_key_value_heads")
    width = (_first(facts, "head_dim", "d_kv") or hidden // heads) * heads
    attention = 2 * hidden * width + 2 * hidden * width * (shared or heads) // heads
    matrices = 3 if shared else 2  # models with shared key heads have gated feed-forward layers
    positions = (
        (_first(facts, "max_position_embeddings", "n_positions") or 0)
        if not (shared or facts.get("position_biased_input") is False or "d_kv" in facts)
        else 0
    )
    encoder = layers * (attention + matrices * hidden * inner)
    decoders = (_first(facts, "decoder_layers", "num_decoder_layers") or layers) if _has_decoder(facts) else 0
    return (vocabulary + positions) * hidden + encoder + decoders * (2 * attention + matrices * hidden * inner)


def _has_decoder(facts: dict[str, Any]) -> bool:
    return "decoder_layers" in facts or str(facts.get("model_type")) in ("t5", "mt5")


def state_bytes(config: RunConfig, parameters: int) -> int:
    """Bytes of one checkpoint over all ranks."""
    return engine_of(config).checkpoint_bytes(config, parameters)


def kept_checkpoints(config: RunConfig) -> int:
    """Checkpoints on disk at once, the one being written among them; 0 where none is asked for."""
    wanted, keeps_best = config.checkpoint, config.checkpoint.keep_best or config.train.load_best_at_end
    if config.mode != "train" or not (wanted.every_steps or wanted.every_epoch or wanted.every_minutes or keeps_best):
        return 0
    total = config.train.max_steps
    several = wanted.keep_last + int(keeps_best) + 1
    return (
        min(several, max(1, total // wanted.every_steps))
        if total and wanted.every_steps and not wanted.every_epoch and not wanted.every_minutes
        else several
    )
