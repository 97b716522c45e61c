"""What the rest of the runner may ask an adapter. Nothing here imports torch or peft."""

from __future__ import annotations

from abc import ABC
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from runner.config.schema import RunConfig
from runner.engines.base import Rule
from runner.errors import Problem
from runner.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from runner.engines.rank import Prepared, RankEngine

Shape = tuple[int, ...]


class Adapter(ABC):
    """One way to choose what is trained. The methods here are those of training the whole model."""

    name: ClassVar[str]
    label: ClassVar[str] = ""  # in the name of a method: `ZeRO-2 LoRA`; empty where everything is trained
    learning_rate_factor: ClassVar[float] = 1.0  # on the learning rate that a model's file gives for full fine-tuning

    def words(self, config: RunConfig) -> str:
        """What is trained, in the plan; empty where it is everything."""
        return ""

    def problems(self, config: RunConfig, recipe: Recipe) -> list[Problem]:
        """Choices that cannot hold together, on any machine; the configuration is resolved."""
        return []

    def software_problems(self) -> list[Problem]:
        """Packages that this machine lacks."""
        return []

    def rules(self) -> tuple[Rule, ...]:
        """When the adapter's own keys matter."""
        return ()

    def trained_parameters(self, config: RunConfig, parameters: int) -> int:
        """About how many are trained of a model with so many, without building it."""
        return parameters

    def settings(self, config: RunConfig, auto_class: str) -> str:
        """All that the memory estimate has to know to build the model's trained part, as text; empty: all of it."""
        return ""

    def loading(self, config: RunConfig) -> dict[str, Any]:
        """Further arguments of `from_pretrained` for the frozen weights."""
        return {}

    def wrapped(self, model: PreTrainedModel, recipe: Recipe, new: list[str]) -> PreTrainedModel:
        """The model with its adapter.

        Args:
            model: whole, on the CPU.
            new: names of tensors that were not loaded: they belong to the task's head, which is trained.
        """
        return model

    def gathered(self, engine: RankEngine, prepared: Prepared) -> dict[str, torch.Tensor]:
        """The weights that `write` saves, complete on rank 0. Collective."""
        return engine.whole_state(prepared)

    def write(self, model: torch.nn.Module, state: dict[str, torch.Tensor], folder: Path) -> None:
        """Write weights (safetensors) and configuration into a new folder."""
        whole: PreTrainedModel = model  # type: ignore[assignment]
        whole.save_pretrained(folder, state_dict=state, safe_serialization=True)

    def saved_shapes(self, model: torch.nn.Module, shapes: dict[str, Shape]) -> dict[str, Shape]:
        """Shapes by the names that `write` gives them.

        Args:
            shapes: of all parameters, by their names in the live model.
        """
        return shapes
