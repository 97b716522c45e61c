"""DeepSpeed inside a rank: ZeRO's engine under accelerate, with optimizer and schedule owned by either side.

Four mixes of owners. The learning rate at optimizer step k is `plan.learning_rate_factor(k) × lr` in each, to the last
bit (a test holds this).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import DistributedType
from typing_extensions import override

from runner import rundir
from runner.compat.deepspeed_checkpoint import reading_universal, without_recovery_script
from runner.compat.deepspeed_muon import import_muon
from runner.compat.deepspeed_ops import leave_out_shared_memory_op
from runner.compat.torch_group_timeouts import set_timeouts
from runner.compat.transformers_zero3 import not_partitioned_at_construction
from runner.engines import engine_of, rank
from runner.engines.deepspeed.config import zero_section
from runner.engines.deepspeed.ops import use_built
from runner.engines.optimizer import client_optimizer, parameter_groups
from runner.engines.rank import (
    AcceleratorOptions,
    Factor,
    GradientNorm,
    Prepared,
    RankError,
    StateWriter,
    group_timeout,
)
from runner.optimizers.adamw import settings

if TYPE_CHECKING:
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.utils import DummyOptim
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.lr_schedules import WarmupLR

TAG = "deepspeed"  # folder of DeepSpeed's files inside a checkpoint


class RankEngine(rank.RankEngine):
    """DeepSpeed's engine, at any ZeRO stage."""

    distributed_types = frozenset({DistributedType.DEEPSPEED})

    @property
    def partition_stage(self) -> int:  # type: ignore[override]
        """ZeRO's stage."""
        return zero_section(self.config).stage

    def options(self) -> AcceleratorOptions:
        """On CPU: without the backend accelerate sees one process; with `cpu=True` it drops DeepSpeed."""
        import_muon()  # for ranks that no host has preloaded
        on_cpu = self.config.launcher.device == "cpu"
        if on_cpu:
            leave_out_shared_memory_op()
        use_built(self.config)
        return AcceleratorOptions(backend="gloo" if on_cpu else None)

    @property
    def _engine(self) -> DeepSpeedEngine:
        engine: DeepSpeedEngine = self.accelerator.deepspeed_engine_wrapped.engine
        return engine

    @property
    def _has_frozen(self) -> bool:
        """Whether some weights are not trained: they are in no checkpoint."""
        return any(not parameter.requires_grad for parameter in self._engine.module.parameters())

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Whole on every rank, unless `zero.partition_at_load`.

        transformers would partition at construction and draw new weights in another order than under any other
        launcher.
        """
        whole = not engine_of(self.config).partitions_at_load(self.config)
        with not_partitioned_at_construction() if whole else contextlib.nullcontext():
            yield

    def prepare(self, model: torch.nn.Module, factor: Factor) -> Prepared:
        """The DeepSpeed engine, which holds model and optimizer."""
        prepared = self._prepared(model, factor)
        if self.config.parallel.tensor > 1:
            from runner.engines.deepspeed import tensor_split

            tensor_split.check_split(prepared.bare, self.config.parallel.tensor)
        return prepared

    def _prepared(self, model: torch.nn.Module, factor: Factor) -> Prepared:
        prepared = self._prepare(model, factor)
        if rundir.started_by_runner():
            set_timeouts(group_timeout(self.config))  # ZeRO's groups take no part in the default group's
        return prepared

    def _prepare(self, model: torch.nn.Module, factor: Factor) -> Prepared:
        from accelerate.utils import DummyScheduler

        optimizer = self._optimizer(model)
        owners = (self.config.optimizer.owner, self.config.scheduler.owner)
        if owners == ("client", "client"):
            engine, wrapped = self.accelerator.prepare(model, optimizer)
            return _client_schedule(engine, wrapped, factor)
        if self.config.scheduler.owner == "deepspeed":
            placeholder = DummyScheduler(optimizer)
        else:
            placeholder = DummyScheduler(
                optimizer, lr_scheduler_callable=lambda built: torch.optim.lr_scheduler.LambdaLR(built, factor)
            )
        engine, wrapped, _ = self.accelerator.prepare(model, optimizer, placeholder)
        if self.config.scheduler.owner == "deepspeed":
            start_at_first_index(engine.lr_scheduler)
        base = engine.basic_optimizer
        return Prepared(engine, engine.module, wrapped, base, None, engine.lr_scheduler, lambda: None)

    def _optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer | DummyOptim:
        config = self.config.optimizer
        if config.owner != "deepspeed":
            return client_optimizer(self, model)
        from accelerate.utils import DummyOptim

        return DummyOptim(parameter_groups(self, model, config.weight_decay), **settings(config))

    def backward(self, loss: torch.Tensor) -> None:
        """accelerate's own call would take the optimizer step inside backward, where it could not be timed apart."""
        self._engine.set_gradient_accumulation_boundary(is_boundary=self.window_ends)
        self._engine.backward(loss)

    def step(self, prepared: Prepared) -> GradientNorm:
        """The engine clips, steps and clears."""
        self._engine.step()
        norm: GradientNorm = self._engine.get_global_grad_norm()
        prepared.step_scheduler()
        return norm

    def loss_scaling(self) -> dict[str, float]:
        """The scale, and the steps skipped so far because gradients overflowed."""
        engine = self._engine
        return {"loss_scale": float(engine.optimizer.loss_scale), "skipped_steps": engine.skipped_steps}

    @property
    def forward_is_collective(self) -> bool:
        """Partitioned parameters are gathered in the forward pass."""
        return self.partition_stage == 3 and self.accelerator.num_processes > 1

    @contextlib.contextmanager
    def whole(self, parameter: torch.nn.Parameter) -> Iterator[torch.Tensor]:
        """Gathered at ZeRO-3, and over the ranks that share a layer."""
        from runner.engines.deepspeed import tensor_split

        if not hasattr(parameter, "ds_id"):
            yield tensor_split.gathered(parameter)
            return
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            yield tensor_split.gathered(parameter)

    def whole_shape(self, parameter: torch.nn.Parameter) -> tuple[int, ...]:
        """Also where ZeRO-3 has partitioned it, or ranks share it."""
        from runner.engines.deepspeed import tensor_split

        return tensor_split.whole_shape(parameter) or tuple(getattr(parameter, "ds_shape", parameter.shape))

    def whole_state(self, prepared: Prepared) -> dict[str, torch.Tensor]:
        """Under tensor parallelism put together here: DeepSpeed's way changes the parameters."""
        if self.config.parallel.tensor == 1:
            return super().whole_state(prepared)
        state: dict[str, torch.Tensor] = {}
        for name, parameter in prepared.bare.named_parameters():
            with self.whole(parameter) as whole:
                if self.accelerator.is_main_process:
                    state[name] = whole.detach().cpu().clone()
        return state

    def own_part(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """At ZeRO-3 the partition."""
        part: torch.Tensor = getattr(parameter, "ds_tensor", parameter)
        return part

    @override
    def save_state(self, prepared: Prepared, writer: StateWriter) -> None:
        """DeepSpeed's own files, one or more a rank."""
        with _writes_through(self._engine, writer):
            self._engine.save_checkpoint(
                str(writer.folder), tag=TAG, save_latest=False, exclude_frozen_parameters=self._has_frozen
            )

    def load_state(self, prepared: Prepared, folder: Path, converted: Path | None) -> None:
        """From DeepSpeed's own files, or from their universal form."""
        engine, groups = self._engine, prepared.base_optimizer.param_groups
        own_settings = [{key: value for key, value in group.items() if key not in ("params", "lr")} for group in groups]
        with reading_universal(engine, converted is not None):
            path, _ = engine.load_checkpoint(str(converted or folder), tag=TAG, load_module_strict=not self._has_frozen)
        if converted is not None:
            _fix_universal_load(prepared.base_optimizer, own_settings)
        if path is None:
            raise RankError(f"DeepSpeed found no checkpoint in {folder}")


def _client_schedule(engine: DeepSpeedEngine, wrapped: AcceleratedOptimizer, factor: Factor) -> Prepared:
    """A torch scheduler on the optimizer that the engine really uses (accelerate may have swapped in CPU Adam)."""
    base = engine.basic_optimizer
    scheduler = torch.optim.lr_scheduler.LambdaLR(base, factor)

    def step() -> None:
        if not getattr(engine.optimizer, "overflow", False):
            scheduler.step()

    return Prepared(engine, engine.module, wrapped, base, scheduler, scheduler, step)


def start_at_first_index(scheduler: WarmupLR | None) -> None:
    """DeepSpeed's schedules start before index 0, so that their first two optimizer steps share index 0; start at 0."""
    if scheduler is not None and scheduler.last_batch_iteration < 0:
        scheduler.step(0)


@contextlib.contextmanager
def _writes_through(engine: DeepSpeedEngine, writer: StateWriter) -> Iterator[None]:
    """Have a DeepSpeed engine save its checkpoint with `writer`.

    It writes between collective operations. If a full disk raised an exception on one rank there, the others would
    wait for it for ever; the writer keeps the error instead.
    """
    from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine

    class Through(TorchCheckpointEngine):  # type: ignore[misc]
        """Named files go to the writer; folders are made by it."""

        def save(self, state_dict: object, path: str) -> None:
            writer.save(state_dict, str(Path(path).relative_to(writer.folder)))

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            pass

    before = engine.checkpoint_engine
    engine.checkpoint_engine = Through()
    try:
        with without_recovery_script(engine):
            yield
    finally:
        engine.checkpoint_engine = before


def _fix_universal_load(optimizer: torch.optim.Optimizer, own_settings: list[dict[str, Any]]) -> None:
    """Undo what DeepSpeed 0.19.8 gets wrong for ZeRO-3: it gives every parameter group the first group's settings
    (weight decay on biases), and all states one shared step counter, which then counts once per group and step.
    """
    for group, own in zip(optimizer.param_groups, own_settings, strict=True):
        group.update(own)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()
