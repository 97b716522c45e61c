"""An engine inside a rank: what training needs of DDP, DeepSpeed, … so that the loop knows none of them by name.

`runner/engines/NAME/rank.py` defines `RankEngine`, a subclass of the one here, for `launcher=NAME`.
"""

from __future__ import annotations

import contextlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, GradientAccumulationPlugin, InitProcessGroupKwargs, KwargsHandler

from runner import rundir
from runner.config.schema import RunConfig

Factor = Callable[[int], float]  # optimizer step, from 0 → factor on the peak learning rate
GradientNorm = float | torch.Tensor | None


class RankError(RuntimeError):
    """The ranks are not what was asked for."""


class StateDict(Protocol):
    """Something whose state is saved with a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Its state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Take it up."""


class StateWriter(Protocol):
    """Writes this rank's files of a checkpoint; never raises for a failed write, so that collectives go on."""

    folder: Path

    def save(self, content: object, name: str) -> None:
        """`torch.save` under a name inside the folder."""


@dataclass
class AcceleratorOptions:
    """What an engine needs when the Accelerator is built.

    Attributes:
        cpu: told to accelerate as `cpu=True`.
        backend: of the process group; None leaves it to accelerate.
    """

    cpu: bool = False
    backend: str | None = None
    handlers: list[KwargsHandler] = field(default_factory=list)


@dataclass
class Prepared:
    """Model and optimizer, ready to train.

    Attributes:
        model: what is called: the DDP module, the DeepSpeed engine, …
        bare: the transformers model inside.
        optimizer: what is stepped.
        base_optimizer: the optimizer whose param_groups hold the learning rate.
        scheduler: what state has to be saved; None where the engine saves it.
        schedule: whatever moves the learning rate, for the record.
        step_scheduler: moves the learning rate on; does nothing where the engine has done it.
    """

    model: torch.nn.Module
    bare: torch.nn.Module
    optimizer: torch.optim.Optimizer
    base_optimizer: torch.optim.Optimizer
    scheduler: StateDict | None
    schedule: object
    step_scheduler: Callable[[], None]

    @property
    def learning_rate(self) -> float:
        """The rate the next optimizer step uses."""
        return float(self.base_optimizer.param_groups[0]["lr"])


class RankEngine(ABC):
    """One rank's side of an engine. Methods marked collective must be called by all ranks.

    Attributes:
        distributed_types: what accelerate may report when this engine runs.
        partition_stage: ZeRO's stage, in checkpoints and in the record; None for engines that have none.
    """

    distributed_types: ClassVar[frozenset[DistributedType]]
    partition_stage: int | None = None

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.accelerator = self._build()

    def _build(self) -> Accelerator:
        options = self.options()
        group: dict[str, Any] = {"timeout": group_timeout(self.config)} if rundir.started_by_runner() else {}
        if options.backend is not None:
            group["backend"] = options.backend
        accumulation = self.config.train.gradient_accumulation_steps
        return Accelerator(
            cpu=options.cpu,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=accumulation),
            step_scheduler_with_optimizer=False,  # accelerate would step it once per process for every optimizer step
            kwargs_handlers=[*([InitProcessGroupKwargs(**group)] if group else []), *options.handlers],
        )

    @abstractmethod
    def options(self) -> AcceleratorOptions:
        """Called before the Accelerator is built; binds what has to be bound before (compiled ops)."""

    def building(self) -> contextlib.AbstractContextManager[None]:
        """A context in which the model is built, whole unless the engine was asked to partition it at once."""
        return contextlib.nullcontext()

    @abstractmethod
    def prepare(self, model: torch.nn.Module, factor: Factor) -> Prepared:
        """Build optimizer and scheduler for their owners and hand everything to accelerate. Collective."""

    def accumulate(self, prepared: Prepared) -> contextlib.AbstractContextManager[Any]:
        """A context for one micro batch."""
        return self.accelerator.accumulate(prepared.model)  # type: ignore[no-any-return]

    @property
    def window_ends(self) -> bool:
        """Inside `accumulate`: whether this micro batch is the last before an optimizer step."""
        return bool(self.accelerator.sync_gradients)

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of one micro batch. What is averaged: over ranks, and over `gradient_accumulation_steps`."""
        self.accelerator.backward(loss)

    @abstractmethod
    def step(self, prepared: Prepared) -> GradientNorm:
        """Clip, step, clear gradients; returns the norm before clipping, where the engine knows it. Collective."""

    def loss_scaling(self) -> dict[str, float]:
        """In fp16: `loss_scale`, and `skipped_steps` where the engine counts them."""
        scaler = self.accelerator.scaler
        return {"loss_scale": float(scaler.get_scale())} if scaler is not None else {}

    @property
    def forward_is_collective(self) -> bool:
        """Whether a forward pass needs every rank: then all have to run equally many, in evaluation too."""
        return False

    @contextlib.contextmanager
    def whole(self, parameter: torch.nn.Parameter) -> Iterator[torch.Tensor]:
        """A context with all elements of a parameter. Collective where parameters are partitioned."""
        yield parameter

    def whole_shape(self, parameter: torch.nn.Parameter) -> tuple[int, ...]:
        """Shape of the whole parameter."""
        return tuple(parameter.shape)

    def own_part(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """The elements of a parameter that this rank holds."""
        return parameter

    def whole_state(self, prepared: Prepared) -> dict[str, torch.Tensor]:
        """All weights under the names of the transformers model; complete on rank 0. Collective."""
        state: dict[str, torch.Tensor] = self.accelerator.get_state_dict(prepared.model)
        return state

    def trained_state(self, prepared: Prepared) -> dict[str, torch.Tensor]:
        """The weights that are trained, whole, under their names in the live model; on every rank. Collective."""
        found: dict[str, torch.Tensor] = {}
        for name, parameter in prepared.bare.named_parameters():
            if parameter.requires_grad:
                with self.whole(parameter) as whole:
                    found[name] = whole.detach().cpu().clone()
        return found

    @abstractmethod
    def save_state(self, prepared: Prepared, writer: StateWriter) -> None:
        """Write weights, optimizer and loss scale of a checkpoint. Collective."""

    @abstractmethod
    def load_state(self, prepared: Prepared, folder: Path, converted: Path | None) -> None:
        """Take up what `save_state` wrote. Collective.

        Args:
            converted: the checkpoint cut anew for this number of ranks, where that was needed.
        """


def rank_engine_of(config: RunConfig) -> RankEngine:
    """The engine of a run, inside a rank; builds the Accelerator.

    Raises:
        RankError: where no engine has the launcher's name.
    """
    name = f"runner.engines.{config.launcher.name}.rank"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # a library that the engine needs
        raise RankError(f"launcher={config.launcher.name}: there is no engine of this name ({name})") from None
    engine: RankEngine = module.RankEngine(config)
    return engine


def group_timeout(config: RunConfig) -> timedelta:
    """Longer than the runner waits: it ends a run that stands still and has the ranks' stacks written, while a process
    group that gives up first (NCCL's after 10 minutes) leaves none, and would end a run in which rank 0 writes for
    long.
    """
    launcher = config.launcher
    return timedelta(seconds=2 * max(launcher.hang_timeout_seconds, launcher.start_timeout_seconds) + 600)
