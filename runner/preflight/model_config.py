"""`model.config` and the bundled tokenizer: what transformers would refuse after the ranks have started."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from runner import paths
from runner.config.catalogue import BUNDLED_TOKENIZER
from runner.config.model_types import ConfigClass, activation_functions, built_by, config_class, model_types
from runner.config.schema import RunConfig
from runner.errors import Problem, nearest
from runner.recipe import Recipe

# Sizes of layers and tables, in the words of the configuration classes. Not among them: keys that 0 or -1 turns off.
SIZES = re.compile(
    r"(vocab_size|hidden_size|embedding_size|intermediate_size|d_model|d_kv|d_ff|n_embd|n_inner|n_layer|n_head|n_positions|head_dim|attention_head_size"
    r"|max_position_embeddings|num_layers|num_decoder_layers|num_heads|num_hidden_layers|num_attention_heads|num_key_value_heads"
    r"|(en|de)coder_(layers|attention_heads|ffn_dim))"
)
HEADS = ("num_attention_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads")
WIDTHS = ("hidden_size", "n_embd", "d_model")


def builds_from_facts(config: RunConfig) -> bool:
    """Whether the model is built from `model.config`, and not from a folder's or the hub's configuration."""
    return config.model.init == "random" and bool(config.model.config) and not config.model.path


def check_architecture(config: RunConfig, recipe: Recipe) -> list[Problem]:
    """Facts in `model.config` from which transformers can build no model: type, keys, values, divisibility.

    Nothing is imported for it.
    """
    facts = config.model.config
    kind = facts.get("model_type")
    if not kind:
        return [
            Problem(
                "model.config.model_type",
                kind,
                "nothing says which class the model is of",
                "set model.config.model_type=TYPE, or choose a model with model=NAME",
            )
        ]
    known, buildable = model_types(), built_by(recipe.auto_class)
    if known and buildable and (kind not in known or kind not in buildable):
        why = (
            f"transformers has no {recipe.auto_class} of this type, which recipe={config.recipe.name} needs"
            if kind in known
            else "transformers has no such model type"
        )
        return [Problem("model.config.model_type", kind, why, _near("model.config.model_type=", str(kind), buildable))]
    settings = config_class(str(kind))
    if settings is None:
        return []
    problems = [
        problem
        for key, value in facts.items()
        if key != "model_type"
        for problem in _wrong_value(settings, str(kind), key, value)
    ]
    return problems or _indivisible(settings, facts)


def _wrong_value(settings: ConfigClass, kind: str, key: str, value: object) -> list[Problem]:
    name = f"model.config.{key}"
    if not settings.knows(key):
        return [
            Problem(
                name,
                value,
                f"no part of {kind} reads this key",
                _near("model.config.", key, [*settings.types, *settings.aliases], "remove it"),
            )
        ]
    if not settings.holds(key, value):
        allowed = settings.types[settings.aliases.get(key, key)]
        words = {
            "int": "a whole number",
            "float": "a number with a point",
            "str": "text",
            "bool": "true or false",
            "None": "null",
            "list": "a list",
            "dict": "a mapping",
        }
        return [
            Problem(
                name,
                value,
                f"{kind} wants {' or '.join(dict.fromkeys(words[item] for item in allowed))} here",
                _example(settings, key),
            )
        ]
    if SIZES.fullmatch(key) and value is not None and (not isinstance(value, int) or value < 1):
        return [Problem(name, value, "a size is a whole number of at least 1", _example(settings, key))]
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if number is not None and re.search(r"dropout|_prob$|pdrop$", key) and not 0 <= number <= 1:
        return [Problem(name, value, "a probability lies between 0 and 1", _example(settings, key))]
    acts = activation_functions()
    if isinstance(value, str) and acts and re.search(r"_act$|^activation_function$", key) and value not in acts:
        return [Problem(name, value, "transformers has no such activation function", _near(f"{name}=", value, acts))]
    return []


def _indivisible(settings: ConfigClass, facts: dict[str, Any]) -> list[Problem]:
    """Heads share the model's width evenly, unless they have a width of their own; query heads share the key-value
    heads.
    """
    given = {settings.aliases.get(key, key): value for key, value in facts.items()}
    values = settings.defaults | given
    pairs = [(width, head) for width in WIDTHS for head in HEADS if not values.get("head_dim")]
    problems = []
    for width, head in [*pairs, ("num_attention_heads", "num_key_value_heads")]:
        whole, parts = values.get(width), values.get(head)
        if (
            isinstance(whole, int)
            and isinstance(parts, int)
            and width in settings.types
            and head in settings.types
            and whole % parts
        ):
            near = next(count for count in range(min(parts, whole), 0, -1) if whole % count == 0)
            why = f"does not divide model.config.{width}={whole}, which these share evenly"
            problems.append(
                Problem(f"model.config.{head}", parts, why, f"use model.config.{head}={near}, or another {width}")
            )
    return problems


def _example(settings: ConfigClass, key: str) -> str:
    default = settings.defaults.get(settings.aliases.get(key, key))
    return f"for example model.config.{key}={'null' if default is None else default}"


def _near(prefix: str, word: str, known: Collection[str], otherwise: str = "") -> str:
    near = nearest(word, known)
    return f"did you mean {prefix}{near}?" if near else otherwise or f"known are {', '.join(sorted(known)[:8])}, …"


def check_bundled_tokenizer(config: RunConfig) -> list[Problem]:
    """`model.tokenizer=bundled:NAME` names one that comes with the runner."""
    named = config.model.tokenizer
    if not named or not named.startswith(BUNDLED_TOKENIZER):
        return []
    known = sorted(path.name for path in (paths.samples_dir() / "tokenizers").iterdir() if path.is_dir())
    if named.removeprefix(BUNDLED_TOKENIZER) in known:
        return []
    near = nearest(named.removeprefix(BUNDLED_TOKENIZER), known)
    fix = (
        f"did you mean model.tokenizer={BUNDLED_TOKENIZER}{near}?"
        if near
        else "use " + " or ".join(f"model.tokenizer={BUNDLED_TOKENIZER}{name}" for name in known)
    )
    return [Problem("model.tokenizer", named, "no such tokenizer comes with the runner", fix)]
