"""What is read from the source of transformers, against its classes themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from runner.config.catalogue import option_files
from runner.config.model_types import activation_functions, built_by, config_class, model_types
from tests.conftest import ROOT, cli_environment

FACTS = {name: yaml.safe_load(path.read_text())["model"]["config"] for name, path in option_files("model").items()}


@pytest.mark.parametrize("kind", sorted({facts["model_type"] for facts in FACTS.values()}))
def test_keys_and_defaults_are_those_of_the_class(kind: str) -> None:
    from dataclasses import fields

    from transformers import CONFIG_MAPPING

    read, real = config_class(kind), CONFIG_MAPPING[kind]
    assert read is not None
    assert read.complete
    defaults = {field.name: field.default for field in fields(real)}
    assert set(read.types) == set(defaults)
    assert read.aliases == real.attribute_map
    assert {name: defaults[name] for name in read.defaults} == read.defaults


@pytest.mark.parametrize("name", sorted(FACTS))
def test_no_shipped_model_is_refused(name: str) -> None:
    facts = dict(FACTS[name])
    read = config_class(facts.pop("model_type"))
    assert read is not None
    assert [key for key, value in facts.items() if not (read.knows(key) and read.holds(key, value))] == []


def test_types_are_as_strict_as_the_class() -> None:
    read = config_class("gpt2")
    assert read is not None
    assert [read.holds("n_head", value) for value in (4, "4", 4.0, True, None)] == [True, False, False, False, False]
    assert [read.holds("hidden_size", 4), read.holds("hidden_size", "4")] == [True, False]  # an alias of n_embd
    assert [read.holds("eos_token_id", value) for value in (1, [1, 2], None, "1")] == [True, True, True, False]
    assert [read.knows(key) for key in ("n_embd", "hidden_size", "foo")] == [True, True, False]


def test_model_types_by_class() -> None:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    assert built_by("AutoModelForCausalLM") == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert built_by("AutoModelForSeq2SeqLM") == set(MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
    assert built_by("AutoModelForNothing") == frozenset()
    assert model_types()["deberta-v2"] == "DebertaV2Config"
    assert {"gelu", "relu", "silu"} <= activation_functions()


def test_reading_imports_nothing() -> None:
    script = (
        "import sys; from runner.config.model_types import config_class; config_class('bert'); print([name for "
        "name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=cli_environment(), cwd=ROOT, timeout=60
    )
    assert done.stdout.splitlines() == ["[]"], done
