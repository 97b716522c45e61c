"""QLoRA: LoRA beside weights of 4 bits (bitsandbytes).

Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", arXiv:2305.14314.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from runner.adapters import lora
from runner.adapters.checks import package_problem
from runner.adapters.config import QuantizationConfig, quantization_section
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.engines.base import Rule
from runner.errors import Problem
from runner.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEYS = tuple(f"quantization.{name}" for name in QuantizationConfig.model_fields)
TASKS = ("AutoModelForCausalLM",)  # whose head is known to stay out of the quantisation


class Adapter(lora.Adapter):
    """LoRA by peft, the frozen linear layers quantised by bitsandbytes."""

    name = "qlora"
    label = "QLoRA"

    def words(self, config: RunConfig) -> str:
        """LoRA's words, and the format of the frozen weights."""
        section = quantization_section(config)
        twice = ", scales quantised as well" if section.double else ""
        return f"{super().words(config)}; frozen layers in {section.type}{twice}, stored as {storage(config)}"

    def problems(self, config: RunConfig, recipe: Recipe) -> list[Problem]:
        """LoRA's, and what quantised weights cannot stand."""
        return super().problems(config, recipe) + _task(recipe) + _storage(config) + _loading(config)

    def software_problems(self) -> list[Problem]:
        """peft and bitsandbytes."""
        return super().software_problems() + package_problem(self.name, "bitsandbytes", "qlora")

    def rules(self) -> tuple[Rule, ...]:
        """The quantisation's keys matter under QLoRA."""
        fix = "add adapter=qlora, or leave it out"
        return (Rule(KEYS, lambda config: lora.chosen(config) is self, "nothing is quantised", fix),)

    def settings(self, config: RunConfig, auto_class: str) -> str:
        """LoRA's, and the quantisation."""
        quantization = {"type": quantization_section(config).type, "double": quantization_section(config).double}
        return json.dumps({**json.loads(super().settings(config, auto_class)), "quantization": quantization})

    def wrapped(self, model: PreTrainedModel, recipe: Recipe, new: list[str]) -> PreTrainedModel:
        """LoRA's, and the quantised layers stay trainable after an evaluation."""
        from runner.adapters.quantized import keep_trainable

        keep_trainable(model)
        return super().wrapped(model, recipe, new)

    def loading(self, config: RunConfig) -> dict[str, Any]:
        """bitsandbytes' configuration."""
        from runner.adapters.quantized import loading

        return loading(quantization_section(config), storage(config), config.precision.name, config.launcher.device)


def storage(config: RunConfig) -> str:
    """The type that the packed bytes are stored in."""
    asked = quantization_section(config).storage
    return engine_of(config).quantized_storage(config) if asked == "auto" else asked


def _task(recipe: Recipe) -> list[Problem]:
    if recipe.auto_class in TASKS:
        return []
    why = f"quantised weights are proved for language models (recipes of {TASKS[0]}) only"
    return [Problem("adapter", "qlora", why, "use adapter=lora")]


def _storage(config: RunConfig) -> list[Problem]:
    """DeepSpeed and FSDP cast or shard floats: packed bytes survive as uint8, or as the run's own type."""
    chosen, needed = storage(config), engine_of(config).quantized_storage(config)
    if chosen in (needed, "uint8", config.precision.name) and (needed == "uint8" or chosen == needed):
        return []
    why = (
        f"launcher={config.launcher.name} shards floating-point weights only"
        if needed != "uint8" and chosen == "uint8"
        else f"a run in {config.precision.name} casts it, which destroys the packed bytes"
    )
    return [Problem("quantization.storage", chosen, why, f"use quantization.storage={needed}")]


def _loading(config: RunConfig) -> list[Problem]:
    engine = engine_of(config)
    if engine.partitions_at_load(config):
        why = "weights are quantised when they are loaded, and partitioned weights cannot be"
        return [Problem("zero.partition_at_load", True, why, "use zero.partition_at_load=false")]
    return []
