"""What a rank holds while it works, in small parts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.schema import RunConfig
from runner.data.prepared import PreparedSplit
from runner.engines.rank import Prepared, RankEngine
from runner.recipe import Batch, Recipe
from runner.rundir.heartbeat import Heartbeat
from runner.rundir.record import Record
from runner.train.faults import Faults
from runner.train.ranks import RankPlace
from runner.train.timing import EpochTimes, PhaseClock

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class Timing:
    """Clocks of a rank.

    Attributes:
        started: of the command, on the machine's monotonic clock, in seconds.
        epoch_began: on the phase clock, moved on by the time that checkpoints took.
    """

    started: float
    clock: PhaseClock
    epochs: EpochTimes
    epoch_began: float = 0.0

    def elapsed(self) -> float:
        """Seconds since the command was typed."""
        return time.monotonic() - self.started

    def phases(self) -> dict[str, float]:
        """Seconds by phase so far; they add up to what has elapsed."""
        return self.clock.phases(self.elapsed())


@dataclass
class Output:
    """What a rank tells the outside.

    Attributes:
        folder: where it writes.
        record: on rank 0 only.
        notes: what was cut, dropped or newly initialised.
    """

    folder: Path
    heartbeat: Heartbeat
    record: Record | None = None
    notes: list[str] = field(default_factory=list)


@dataclass
class Task:
    """The recipe and its data.

    Attributes:
        train: None where nothing is trained.
        evaluated: splits by name.
    """

    recipe: Recipe
    tokenizer: PreTrainedTokenizerBase
    train: PreparedSplit | None
    evaluated: dict[str, PreparedSplit]

    @property
    def training_split(self) -> PreparedSplit:
        """The training split of a run that trains."""
        assert self.train is not None
        return self.train

    def collated(self, split: PreparedSplit, rows: list[int]) -> Batch:
        """Some rows as padded tensors."""
        return self.recipe.collate(split.rows(rows), self.tokenizer)


@dataclass
class RankStart:
    """A rank before it has data and a model.

    Attributes:
        trial: of `fit`: the longest rows first, and an evaluation of the longest batch only.
    """

    config: RunConfig
    trial: bool
    engine: RankEngine
    place: RankPlace
    timing: Timing
    output: Output
    faults: Faults


@dataclass
class RankContext(RankStart):
    """A rank with data and a model."""

    task: Task
    prepared: Prepared
    activation_dtype: str | None = None  # of the first linear layer's output, once it has run

    @property
    def batching(self) -> str:
        """How rows are ordered."""
        return "longest_first" if self.trial else self.config.train.batching
