"""How much memory a rank may use, and what a batch is predicted to need of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner import machine
from runner.config import plan
from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError
from runner.machine import host_memory_bytes
from runner.memory.amounts import gib, parse_bytes

if TYPE_CHECKING:
    from runner.memory.workload import DataLengths

CPU_SHARE = 0.9  # of this machine's memory, for all ranks together, where no budget is given


@dataclass(frozen=True)
class MemoryBudget:
    """Memory of one rank.

    Attributes:
        bytes: on a GPU of the device; on CPU resident memory (VmHWM of /proc/PID/status) of the rank's process,
            with the pages of the libraries it shares with other ranks: what `peak_memory_bytes` in a record counts.
        source: where the number comes from.
    """

    bytes: int
    source: str


def budget_of(config: RunConfig) -> MemoryBudget:
    """The memory budget of a resolved configuration.

    Raises:
        RequestError: for a budget that is no amount of memory or exceeds the device.
    """
    device, source = _device_bytes(config)
    text = config.fit.memory_budget
    if text is None:
        return MemoryBudget(device, source)
    try:
        budget = parse_bytes(text)
    except ValueError as error:
        raise RequestError(
            Problem("fit.memory_budget", text, str(error), "for example fit.memory_budget=24GiB")
        ) from None
    if budget > device:
        raise RequestError(
            Problem(
                "fit.memory_budget",
                text,
                f"{source} has {gib(device)}",
                f"use fit.memory_budget={device // 2**20}MiB or leave it out",
            )
        )
    return MemoryBudget(budget, f"fit.memory_budget={text}")


def _device_bytes(config: RunConfig) -> tuple[int, str]:
    if config.launcher.device == "cuda":
        gpus = machine.visible_devices(config.launcher.gpu_ids)
        return min(gpu.memory_bytes for gpu in gpus), "the smallest visible GPU"
    ranks = plan.world_size(config)
    return int(
        host_memory_bytes() * CPU_SHARE / ranks
    ), f"{CPU_SHARE:.0%} of this machine's memory, divided by {ranks} ranks,"


class Prediction:
    """Predicted bytes by micro batch; better once a trial has reported the data's real lengths and its own peak."""

    def __init__(self) -> None:
        self.lengths: DataLengths | None = None
        self._error = 0  # measured - predicted of the newest trial that ran, in bytes

    def bytes(self, config: RunConfig, micro_batch_size: int) -> int | None:
        """Bytes a rank of this configuration needs at a micro batch size; None where the model cannot be estimated."""
        predicted = self._estimate(config, micro_batch_size)
        return None if predicted is None else predicted + self._error

    def learn(self, config: RunConfig, micro_batch_size: int, measured: int, longest_row_tokens: int | None) -> None:
        """Take the data's longest row and the prediction's error from a trial that ran."""
        if longest_row_tokens and self.lengths is None:
            from runner.memory.configured import workload_from_config
            from runner.memory.workload import MeasuredLengths

            try:
                configured = workload_from_config(config, plan.world_size(config))
            except ValueError:
                return
            found: Any = MeasuredLengths(
                min(longest_row_tokens, configured.source_length),
                configured.target_length,
                "longest row of the training split",
            )
            self.lengths = found
        predicted = self._estimate(config, micro_batch_size)
        self._error = measured - predicted if predicted is not None else 0

    def _estimate(self, config: RunConfig, micro_batch_size: int) -> int | None:
        from runner.memory.configured import workload_from_config
        from runner.memory.estimate import estimate

        try:
            workload = workload_from_config(config, plan.world_size(config), self.lengths).with_batch(micro_batch_size)
            found = estimate(workload)
        except (ValueError, NotImplementedError):
            return None
        return found.host_bytes_per_rank if workload.device == "cpu" else found.device_bytes_per_rank
