"""Tokenizer and model of a run, from a folder, the hub, or the architecture facts in conf/model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import paths
from runner.adapters import adapter_of
from runner.adapters.folder import BaseMissing, base_of, merged
from runner.config.catalogue import BUNDLED_TOKENIZER
from runner.config.inputs import ModelConfig
from runner.config.schema import RunConfig
from runner.config.sequence_limits import config_folder, is_adapter_folder, position_limit
from runner.data.prepared import PreparedSplit
from runner.engines import engine_of
from runner.recipe import Recipe
from runner.train.honesty import FEW_KNOWN, unknown_share

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


class AssetError(RuntimeError):
    """Weights or tokenizer do not fit the run."""


def model_source(model: ModelConfig) -> str | None:
    """Folder or hub name of the weights."""
    return str(Path(model.path).expanduser().absolute()) if model.path else model.hub_id


def tokenizer_source(model: ModelConfig) -> str | None:
    """Folder or hub name of the tokenizer."""
    if model.tokenizer and model.tokenizer.startswith(BUNDLED_TOKENIZER):
        return str(paths.samples_dir() / "tokenizers" / model.tokenizer.removeprefix(BUNDLED_TOKENIZER))
    return model.tokenizer or model_source(model)


def build_tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    """The run's tokenizer; one without a padding token (GPT-2) pads with its end-of-text token."""
    from transformers import AutoTokenizer

    source = tokenizer_source(config.model)
    assert source is not None, "checked before the run"
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        source, revision=_revision(config.model, source), trust_remote_code=config.model.trust_remote_code
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def tokenizer_notes(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """What had to be chosen for it: a padding token, where it has none of its own."""
    if tokenizer.pad_token is None or tokenizer.pad_token != tokenizer.eos_token:
        return []
    if tokenizer.init_kwargs.get("pad_token") is not None:
        return []
    return [f"the tokenizer has no padding token: {tokenizer.eos_token} pads, masked out of attention and loss"]


def check_text_is_known(tokenizer: PreTrainedTokenizerBase, *splits: PreparedSplit | None) -> None:
    """Refuse a tokenizer to which most of the text is unknown: one without its vocabulary is built of special tokens only.

    Raises:
        AssetError: with the share.
    """  # noqa: E501
    for split in splits:
        share = unknown_share(split, tokenizer.unk_token_id) if split is not None else 0.0
        if share > FEW_KNOWN:
            raise AssetError(
                f"{100 * share:.0f} % of the tokens are unknown to the tokenizer ({type(tokenizer).__name__}, "
                f"{len(tokenizer)} tokens): it is not the one of this text; set model.tokenizer=DIR"
            )


def _revision(model: ModelConfig, source: str) -> str:
    return model.revision if model.revision and source == model.hub_id else "main"


def architecture(config: RunConfig, overrides: dict[str, Any]) -> PretrainedConfig:
    """The transformers configuration of the run's model, with the recipe's keys set."""
    from transformers import AutoConfig

    model = config.model
    source = model_source(model)
    if model.init == "random" and model.config and not model.path:
        facts = dict(model.config)
        made: PretrainedConfig = AutoConfig.for_model(facts.pop("model_type"), **{**facts, **overrides})
        return made
    assert source is not None, "checked before the run"
    found: PretrainedConfig = AutoConfig.from_pretrained(
        str(config_folder(source)) if model.path else source,
        revision=_revision(model, source),
        trust_remote_code=model.trust_remote_code,
        **overrides,
    )
    return found


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase | None = None) -> tuple[PreTrainedModel, list[str]]:
    """The model that is trained, with its adapter where the run has one, and notes on weights that were not loaded.

    Frozen weights may be quantised; everything else is fp32, on the CPU.

    Raises:
        AssetError: as `base_model`; where the embeddings grew, and an adapter would neither train nor save them.
        AdapterError: for names of layers that the model does not have.
    """
    adapter = adapter_of(recipe.config)
    model, new, notes = _base(recipe, tokenizer, adapter.loading(recipe.config))
    return adapter.wrapped(model, recipe, new), notes


def base_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase | None = None) -> tuple[PreTrainedModel, list[str]]:
    """The whole model without an adapter, with fp32 weights on the CPU, and notes on weights that were not loaded."""
    model, _, notes = _base(recipe, tokenizer, {})
    return model, notes


def _base(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase | None, loading: dict[str, Any]
) -> tuple[PreTrainedModel, list[str], list[str]]:
    """The model without an adapter, names of tensors that were not loaded, and notes on them.

    The seed is set first, so that new weights are equal on every rank and for every launcher. It is built
    before ZeRO-3 partitions it, so shapes and initial weights are the model's own at every stage.

    Args:
        tokenizer: with more tokens than the model's vocabulary, the embeddings grow.
        loading: further arguments of `from_pretrained`; random weights are loaded anew with them.

    Raises:
        AssetError: when more than the task's head differs from the weights, or a length does not fit the positions.
    """
    import torch
    import transformers

    config = recipe.config
    model_class = getattr(transformers, recipe.auto_class)
    settings = architecture(config, recipe.model_overrides())
    _check_positions(recipe, settings)
    new: list[str] = []
    notes: list[str] = []
    torch.manual_seed(config.train.seed)
    if config.model.init == "random":
        model = model_class.from_config(settings, trust_remote_code=config.model.trust_remote_code)
        model = _loaded_anew(model, loading) if loading else model
    else:
        model, new, notes = _pretrained(config.model, model_class, settings, loading)
        _check_vocabulary(config.model, settings, tokenizer)
    grown = _fit_vocabulary(model, tokenizer)
    if grown and adapter_of(config).label:
        raise AssetError(
            f"{grown[0]}: an adapter would neither train nor save them; use adapter=none, or a tokenizer of the "
            "model's own (model.tokenizer=DIR)"
        )
    notes += grown
    if config.train.gradient_checkpointing:
        # The re-entrant form breaks DeBERTa's relative attention.
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.config.use_cache = False
    # Packed weights must not be cast; what is not packed was loaded in fp32.
    return (model if loading or engine_of(config).partitions_at_load(config) else model.float()), new, notes


def _loaded_anew(model: PreTrainedModel, loading: dict[str, Any]) -> PreTrainedModel:
    """A model of random weights with arguments that only `from_pretrained` takes."""
    import torch

    state = model.state_dict()
    return type(model).from_pretrained(  # type: ignore[no-any-return]
        None, config=model.config, state_dict=state, dtype=torch.float32, **loading
    )


def check_fit(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
    """Whether the weights are whole and tokenizer and lengths fit, by names and shapes alone: nothing is loaded.

    Raises:
        AssetError: as `build_model` would.
    """
    import transformers

    config = recipe.config
    settings = architecture(config, recipe.model_overrides())
    _check_positions(recipe, settings)
    if not is_adapter_folder(model_source(config.model) or ""):  # its base is loaded whole, to be merged
        _pretrained(config.model, getattr(transformers, recipe.auto_class), settings, {"device_map": "meta"})
        _check_vocabulary(config.model, settings, tokenizer)


def _check_positions(recipe: Recipe, settings: PretrainedConfig) -> None:
    """The check made before launch, again on the model's real configuration: a hub model's is known only now."""
    limit = position_limit(settings.to_dict())
    problems = recipe.length_problems(limit) if limit else []
    if problems:
        raise AssetError("; ".join(problem.line() for problem in problems))


def _check_vocabulary(
    model: ModelConfig, settings: PretrainedConfig, tokenizer: PreTrainedTokenizerBase | None
) -> None:
    """A tokenizer much smaller than a pretrained model's vocabulary is not the one it was trained with."""
    known = getattr(settings.get_text_config(), "vocab_size", None)
    if tokenizer is None or not known or 2 * len(tokenizer) >= known:
        return
    raise AssetError(
        f"the tokenizer has {len(tokenizer):,} tokens, the pretrained model {known:,}: its files are missing or it is "
        f"another model's; set model.tokenizer=DIR, the folder with the model's own (now {tokenizer_source(model)})"
    )


def _fit_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> list[str]:
    """Grow the embeddings where the tokenizer has more tokens than the model's configuration says."""
    known = getattr(model.config.get_text_config(), "vocab_size", None)
    if tokenizer is None or known is None or len(tokenizer) <= known:
        return []
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return [
        f"the tokenizer has {len(tokenizer):,} tokens, the model {known:,}: the embeddings were enlarged, the added "
        "rows have new random values"
    ]


def _pretrained(
    model: ModelConfig, model_class: type[PreTrainedModel], settings: PretrainedConfig, loading: dict[str, Any]
) -> tuple[PreTrainedModel, list[str], list[str]]:
    """The model with its weights; a folder with an adapter stands for the model with the adapter merged into it."""
    import torch

    source = model_source(model)
    assert source is not None, "checked before the run"
    folder = Path(source) if is_adapter_folder(source) else None
    revision = _revision(model, source)
    if folder is not None:
        try:
            source, named = base_of(folder)
            revision = named or "main"
        except BaseMissing as error:
            raise AssetError(str(error)) from None
    returned: Any = model_class.from_pretrained(
        source,
        config=settings,
        revision=revision,
        dtype=torch.float32,
        use_safetensors=None if model.allow_pickle else True,
        trust_remote_code=model.trust_remote_code,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **loading,
    )
    loaded, info = returned  # a pair with `output_loading_info`, which its annotation leaves out
    new, notes = _loading_notes(loaded, info, source)
    return (loaded, new, notes) if folder is None else (merged(loaded, folder), [], [])


def _loading_notes(model: PreTrainedModel, info: dict[str, Any], source: str) -> tuple[list[str], list[str]]:
    """Names of tensors with new random values, and one line on them; a mismatch inside the base model is refused."""
    mismatched = {
        str(item[0]) if isinstance(item, (tuple, list)) else str(item) for item in info.get("mismatched_keys", ())
    }
    missing = {str(name) for name in info.get("missing_keys", ())}
    inside = sorted(name for name in mismatched if name.startswith(f"{model.base_model_prefix}."))
    if inside:
        raise AssetError(f"weights in {source} do not fit the architecture: {', '.join(inside[:5])} differ in shape")
    # A pooler belongs to the head: checkpoints of the bare language model have none.
    body = sorted(name for name in missing if name.startswith(f"{model.base_model_prefix}.") and "pooler" not in name)
    if body:
        shown = ", ".join(body[:5]) + (", …" if len(body) > 5 else "")
        raise AssetError(
            f"weights in {source} are incomplete: {len(body)} tensors of the model's body are missing ({shown}); "
            "download them again, or set model.init=random to start from new weights"
        )
    new = sorted(mismatched | missing)
    said = f"new random weights (not in {source} with the task's shape): {', '.join(new)}; everything else was loaded"
    return new, [said] if new else []
