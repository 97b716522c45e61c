"""FSDP without ranks: its YAML, its layer classes, its refusals, the rows of a shard."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config.schema import RunConfig
from runner.engines import engine_named, label_of
from runner.engines.fsdp.layer_classes import BASE, chosen_layers, layer_classes
from runner.engines.fsdp.memory import FsdpLayout
from runner.memory.facts import Architecture, ModelFacts, ParameterFact
from runner.memory.workload import Workload


def config(**sections) -> RunConfig:
    launcher = {"name": "fsdp", "device": "cpu", "num_processes": 2}
    model = {"config": {"model_type": "blenderbot"}}
    return RunConfig.model_validate({"launcher": launcher, "model": model, **sections})


def test_the_yaml_names_the_repeated_layers_and_leaves_nothing_to_defaults() -> None:
    section = engine_named("fsdp").accelerate_section(config(), Path("/runs/a"), 2)
    assert section["distributed_type"] == "FSDP"
    settings = section["fsdp_config"]
    assert settings["fsdp_version"] == 2
    assert settings["fsdp_transformer_layer_cls_to_wrap"] == "BlenderbotDecoderLayer,BlenderbotEncoderLayer"
    assert settings["fsdp_reshard_after_forward"] is True
    assert settings["fsdp_state_dict_type"] == "SHARDED_STATE_DICT"


@pytest.mark.parametrize(
    ("model_type", "layers"),
    [("bert", ("BertLayer",)), ("deberta-v2", ("DebertaV2Layer",)), ("gpt2", ("GPT2Block",)), ("nothing", ())],
)
def test_layers_from_transformers_sources(model_type: str, layers: tuple[str, ...]) -> None:
    assert layer_classes(model_type) == layers


def test_layers_of_a_live_model() -> None:
    base = type(BASE, (), {})
    layer, other = type("MyLayer", (base,), {}), type("Embedding", (), {})
    assert chosen_layers([layer, other], None) == ["MyLayer"]
    assert chosen_layers([layer, other], ["Embedding"]) == ["Embedding"]
    with pytest.raises(ValueError, match="no module of class Missing"):
        chosen_layers([layer], ["Missing"])
    with pytest.raises(ValueError, match=r"name them with fsdp.wrap"):
        chosen_layers([other], None)


def test_one_rank_is_refused() -> None:
    one = config(launcher={"name": "fsdp", "device": "cpu", "num_processes": 1})
    assert [problem.key for problem in engine_named("fsdp").problems(one)] == ["launcher"]
    assert engine_named("fsdp").problems(config()) == []
    unresolved = config(launcher={"name": "fsdp", "device": "cpu", "num_processes": "auto"})  # as `estimate` asks
    assert engine_named("fsdp").problems(unresolved) == []


def test_labels() -> None:
    assert label_of({"launcher": {"name": "fsdp"}}) == "FSDP"
    assert (
        label_of({"launcher": {"name": "fsdp"}, "fsdp": {"reshard_after_forward": False}}) == "FSDP without resharding"
    )


def test_shards_are_padded_rows_and_gathered_unit_by_unit() -> None:
    """5 rows of 8 on 2 ranks: 3 rows each, 24 elements; two layers of 16 elements, 8 a rank each."""
    facts = ModelFacts(
        (
            ParameterFact("embedding.weight", 40, True, 5),
            ParameterFact("h.0.weight", 16, True, 4),
            ParameterFact("h.1.weight", 16, True, 4),
            ParameterFact("h.2.weight", 16, True, 4),
        ),
        0,
        5,
        None,
    )
    workload = Workload(Architecture.of("causal_lm", {"model_type": "gpt2"}), FsdpLayout(), device="cpu")
    sizes = {item.category: item.bytes for item in FsdpLayout().items(workload, facts, None)}
    assert sizes["parameters"] == sizes["gradients"] == 4 * (24 + 8 + 8 + 8)
    assert sizes["optimizer_states"] == 8 * (24 + 8 + 8 + 8)
    assert sizes["gathered_parameters"] == 4 * (40 + 16 + 16)
    whole = {item.category: item.bytes for item in FsdpLayout(False).items(workload, facts, None)}
    assert whole["gathered_parameters"] == 4 * (40 + 3 * 16)


@pytest.mark.parametrize(
    ("kind", "wrap", "advised"),
    [
        ("deberta-v2", ["BertLayer"], "fsdp.wrap=[DebertaV2Layer]"),
        (
            "blenderbot",
            ["BlenderbotEncoderLayer", "T5Block"],
            "fsdp.wrap=[BlenderbotDecoderLayer,BlenderbotEncoderLayer]",
        ),
        ("gpt2", ["gpt2block"], "fsdp.wrap=[GPT2Block]"),
    ],
)
def test_a_class_that_the_model_does_not_have_is_refused_with_those_it_has(
    kind: str, wrap: list[str], advised: str
) -> None:
    (problem,) = engine_named("fsdp").problems(config(model={"config": {"model_type": kind}}, fsdp={"wrap": wrap}))
    assert problem.key == "fsdp.wrap"
    assert wrap[-1] in problem.why
    assert advised in problem.fix


def test_classes_that_the_model_has_are_taken_and_none_is_an_error() -> None:
    for kind, wrap in (("deberta-v2", ["DebertaV2Layer"]), ("gpt2", ["GPT2Block"]), ("unknown-kind", ["MyLayer"])):
        asked = config(model={"config": {"model_type": kind}}, fsdp={"wrap": wrap})
        assert engine_named("fsdp").problems(asked) == []
    with pytest.raises(ValueError, match="at least 1 item"):
        config(fsdp={"wrap": []})
