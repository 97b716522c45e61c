"""LoRA: two matrices of low rank beside each linear layer are trained, the model's own weights are frozen.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from runner.adapters import base
from runner.adapters.checks import adapter_problems, package_problem
from runner.adapters.config import AdapterConfig, adapter_section
from runner.adapters.low_rank import trained_parameters
from runner.config.schema import RunConfig
from runner.engines.base import Rule
from runner.errors import Problem
from runner.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from runner.engines.rank import Prepared, RankEngine

KEYS = tuple(f"adapter.{name}" for name in AdapterConfig.model_fields if name != "name")


class Adapter(base.Adapter):
    """LoRA by peft."""

    name = "lora"
    label = "LoRA"
    # Its best rate is about ten times that of full fine-tuning, whatever model and rank
    # (J. Schulman, Thinking Machines Lab, "LoRA Without Regret", 2025).
    learning_rate_factor = 10.0
    dora = False

    def words(self, config: RunConfig) -> str:
        """Rank, scale, layers."""
        section = adapter_section(config)
        auto = section.target_modules == "auto"
        layers = "all linear layers" if auto else ", ".join(section.target_modules)
        more = f"; trained whole: {', '.join(section.modules_to_save)}" if section.modules_to_save else ""
        return f"{self.label} of rank {section.r}, alpha {section.alpha:g}, beside {layers}{more}"

    def problems(self, config: RunConfig, recipe: Recipe) -> list[Problem]:
        """Names that the model does not have, and what peft would do silently wrong."""
        return adapter_problems(config, recipe)

    def software_problems(self) -> list[Problem]:
        """peft."""
        return package_problem(self.name, "peft", "lora")

    def rules(self) -> tuple[Rule, ...]:
        """The adapter's keys matter where there is one."""
        fix = "add adapter=lora, or leave it out"
        return (Rule(KEYS, lambda config: bool(chosen(config).label), "the whole model is trained", fix),)

    def trained_parameters(self, config: RunConfig, parameters: int) -> int:
        """By the matrices that the architecture has."""
        return trained_parameters(config, parameters)

    def settings(self, config: RunConfig, auto_class: str) -> str:
        """The section, and the task's class."""
        section = adapter_section(config).model_dump(mode="json")
        return json.dumps({**section, "dora": self.dora, "auto_class": auto_class}, sort_keys=True)

    def wrapped(self, model: PreTrainedModel, recipe: Recipe, new: list[str]) -> PreTrainedModel:
        """A PeftModel: base frozen, adapter and new head trained."""
        import torch

        from runner.adapters.wrapping import with_adapter

        torch.manual_seed(recipe.config.train.seed)  # it starts equal, however the weights beside it came about
        return with_adapter(model, adapter_section(recipe.config), recipe.auto_class, self.dora, new)

    def gathered(self, engine: RankEngine, prepared: Prepared) -> dict[str, torch.Tensor]:
        """What is trained only."""
        return engine.trained_state(prepared)

    def write(self, model: torch.nn.Module, state: dict[str, torch.Tensor], folder: Path) -> None:
        """peft's own files, and the model's configuration beside them."""
        from runner.adapters.folder import write_adapter

        write_adapter(model, state, folder)

    def saved_shapes(self, model: torch.nn.Module, shapes: dict[str, base.Shape]) -> dict[str, base.Shape]:
        """Of what is trained, by the names in peft's file."""
        from runner.adapters.folder import shapes_in_file

        return shapes_in_file(model, shapes)


def chosen(config: RunConfig) -> base.Adapter:
    """The adapter of a run."""
    from runner.adapters import adapter_of

    return adapter_of(config)
