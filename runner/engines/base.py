"""What the rest of the runner may ask an engine before ranks start. Nothing here imports torch or Hydra."""

from __future__ import annotations

import contextlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from runner.config.schema import RunConfig
from runner.engines.standalone import Standalone
from runner.errors import Problem
from runner.machine import Finding
from runner.memory.workload import StateLayout, Workload
from runner.optimizers import optimizer_of
from runner.parallel import mesh

if TYPE_CHECKING:
    from runner.checkpoint.folders import Checkpoint

EngineFile = dict[str, Any]  # a user's own configuration file of the engine (launcher.config_file), parsed
Say = Callable[[str], None]
FUSED_HIDES_OVERFLOWS = (
    "a fused step skips overflows inside its kernel, where the schedule does not see it",
    "use optimizer.fused=false, or precision=bf16",
)


class Host(Protocol):
    """As much of the launching host as an engine needs: it runs jobs in a process that has the libraries."""

    job: int | None

    def run(self, op: str, run_dir: Path, environment: dict[str, str], watch: Callable[[], None]) -> dict[str, Any]:
        """Run a job and return its outcome."""

    def kill_job(self) -> None:
        """End the running job."""


class BuildFailed(RuntimeError):
    """Something the engine compiles could not be built; the text says why."""


class ConversionStopped(Exception):
    """Asked to end before a checkpoint was converted; nothing of the run was changed."""


@dataclass(frozen=True)
class Rule:
    """Keys that only matter under a condition."""

    keys: tuple[str, ...]
    matters: Callable[[RunConfig], bool]
    why: str
    fix: str


@dataclass(frozen=True)
class Saving:
    """A way to need less device memory: a row of the search space, advice after memory ran out.

    Attributes:
        choices: group → option, as typed (`zero_stage` → `3`).
        to_host: whether it moves state to the host's memory, which frees nothing on a CPU.
        minor: whether the next way saves more at the same price: tried in a search, not advised.
    """

    choices: Mapping[str, str]
    to_host: bool
    minor: bool
    apply: Callable[[RunConfig], None]

    @property
    def overrides(self) -> list[str]:
        """What to type."""
        return [f"{group}={option}" for group, option in self.choices.items()]


@dataclass(frozen=True)
class OpBuild:
    """What building ahead needs.

    Attributes:
        watch: called while something is waited for; may raise.
        say: prints a line for the user.
    """

    host: Host
    run_dir: Path
    environment: dict[str, str]
    watch: Callable[[], None]
    say: Say


def _remove(folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    return ""


@dataclass(frozen=True)
class CacheFolder:
    """A folder under `cache_dir`.

    Attributes:
        words: what lies in it.
        remove: removes it; returns the name of a part that is in use and was left, else "".
        lock_of: the lock that a process holds while it is at work on an entry of the folder.
    """

    words: str
    remove: Callable[[Path], str] = _remove
    lock_of: Callable[[Path], Path] | None = None


class Engine(ABC):
    """One way to train on several ranks. Methods that return an empty answer by default concern few engines."""

    name: ClassVar[str]
    order: ClassVar[int]  # place in tables
    preloaded: ClassVar[tuple[str, ...]] = ()  # modules that forked ranks find imported
    degrees: ClassVar[frozenset[str]] = frozenset()  # keys of `parallel` that it carries out

    @abstractmethod
    def label(self, config: Mapping[str, object]) -> str:
        """The method's name in a comparison, from the plain configuration of a run or of a record; never raises."""

    @abstractmethod
    def layout(self, config: RunConfig) -> StateLayout:
        """Where training state lives, for the memory estimate."""

    @abstractmethod
    def layouts(self, like: StateLayout) -> Iterable[StateLayout]:
        """The ways to lay out training state that a table of alternatives shows.

        Args:
            like: the configured one; settings that are no alternative (bucket sizes) are taken from it.
        """

    def split_layouts(self, workload: Workload) -> Iterable[StateLayout]:
        """The ways to split the model that a table of alternatives shows when asked for all."""
        return ()

    @abstractmethod
    def accelerate_section(self, config: RunConfig, run_dir: Path, ranks: int) -> dict[str, Any]:
        """Keys of the accelerate YAML that make accelerate run this engine."""

    @abstractmethod
    def checkpoint_bytes(self, config: RunConfig, parameters: int) -> int:
        """Bytes of one checkpoint over all ranks."""

    def files(
        self, config: RunConfig, run_dir: Path, total_steps: int | None, own_file: EngineFile | None
    ) -> dict[str, str]:
        """Further rendered files, name → text."""
        return {}

    def environment(self, config: RunConfig) -> dict[str, str]:
        """Environment variables that this engine's ranks need."""
        return {}

    def adopt(self, config: RunConfig, typed: frozenset[str]) -> tuple[EngineFile | None, list[Problem]]:
        """Read `launcher.config_file` and take its values into the configuration, in place.

        Args:
            typed: keys and groups that were typed; a different value in the file is an error.
        """
        return None, []

    def complete(self, own_file: EngineFile, config: RunConfig, total_steps: int | None) -> EngineFile:
        """The user's file with what it leaves open filled in."""
        return own_file

    def length_problems(self, own_file: EngineFile | None, config: RunConfig, total: int | None) -> list[Problem]:
        """Where the user's file was written for a run of another length."""
        return []

    def fixed_batch(self, config: RunConfig, with_accumulation: bool) -> list[Problem]:
        """Batch sizes that the user's file fixes, where they are what is searched for."""
        return []

    def fixed_method(self, config: RunConfig) -> bool:
        """Whether the user's file fixes what a search over methods would change."""
        return False

    def resolve_owners(self, config: RunConfig, total_steps_known: bool) -> list[Problem]:
        """Replace `owner=auto` in place; refuse what the owner cannot do."""
        owned = [key for key in ("optimizer", "scheduler") if getattr(config, key).owner == "deepspeed"]
        config.optimizer.owner = config.scheduler.owner = "client"
        why = f"there is no DeepSpeed under launcher={self.name}"
        return [
            Problem(f"{key}.owner", "deepspeed", why, f"use launcher=deepspeed or {key}.owner=client") for key in owned
        ]

    def problems(self, config: RunConfig) -> list[Problem]:
        """Choices that cannot hold together, on any machine."""
        return []

    def degree_problems(self, config: RunConfig) -> list[Problem]:
        """Ways to split a model that this engine does not carry out in this run."""
        asked = config.parallel.model_dump(exclude_defaults=True)
        why = f"launcher={self.name} cannot split a model this way"
        return [
            Problem(f"parallel.{name}", degree, why, mesh.CARRIED_BY[name])
            for name, degree in asked.items()
            if name not in self.degrees
        ]

    def missing_values(self, config: RunConfig) -> list[Problem]:
        """What a run must be given, and an estimate need not."""
        return []

    def problems_of_others(self, config: RunConfig) -> list[Problem]:
        """This engine's choices in a run of another engine, which would ignore them."""
        return []

    def software_problems(self, config: RunConfig, own_file: EngineFile | None) -> list[Problem]:
        """Packages, compilers and headers that this machine lacks."""
        return []

    def start_problems(self, config: RunConfig) -> list[Problem]:
        """What only matters when ranks start (folders, free space)."""
        return []

    def rules(self) -> tuple[Rule, ...]:
        """When the engine's own keys matter."""
        return ()

    def partitions_at_load(self, config: RunConfig) -> bool:
        """Whether weights are partitioned while the model is built, so that no rank ever holds them whole."""
        return False

    def quantized_storage(self, config: RunConfig) -> str:
        """Type in which packed weights of 4 bits are stored: one that this engine neither casts nor has to shard."""
        return "uint8"

    def optimizer_on_host(self, config: RunConfig) -> bool:
        """Whether the optimizer step runs on the host's processor."""
        return False

    def cuts_weights(self, config: RunConfig) -> str | None:
        """What cuts weights so that no rank's optimizer sees whole tensors; None if nothing does."""
        return None

    def shards_tensors(self, config: RunConfig) -> bool:
        """Whether the optimizer steps over torch's sharded tensors (DTensors), which not every kernel knows."""
        return False

    def offloads_optimizer(self, config: RunConfig) -> bool:
        """Whether the optimizer states live in host memory or on a disk."""
        return False

    def why_not_fused(self, config: RunConfig) -> tuple[str, str] | None:
        """Why the optimizer's fused kernel cannot be used, and what to do instead; None where it can."""
        return None

    def optimizer_words(self, config: RunConfig, own_file: EngineFile | None) -> str:
        """The optimizer that runs, in the plan."""
        return optimizer_of(config.optimizer).words

    def owner_words(self, config: RunConfig, owner: str) -> str:
        """Who builds it, in the plan."""
        return "the client"

    def schedule_words(self, config: RunConfig, own_file: EngineFile | None, total: int | None) -> str:
        """What is to be said of the schedule beside its name and its warm-up."""
        return ""

    def choices(self, config: RunConfig) -> dict[str, str]:
        """Group → option, as a defaults list names this method."""
        return {"launcher": self.name}

    def savings(self, config: RunConfig, several_ranks: bool) -> Iterator[Saving]:
        """Ways from this configuration to less device memory, from what costs least time to what costs most."""
        return iter(())

    @contextlib.contextmanager
    def run_resources(self, config: RunConfig, run_dir: Path) -> Iterator[None]:
        """What a run needs beside its folder, removed at its end."""
        yield

    def build_ops(self, config: RunConfig, own_file: EngineFile | None, build: OpBuild) -> dict[str, float]:
        """Compile ahead what ranks would otherwise compile; returns seconds by op. Raises BuildFailed."""
        return {}

    def build_job(self, run_dir: Path) -> dict[str, Any]:
        """In a job of the host: compile what `build_ops` has asked for; returns the job's outcome."""
        raise NotImplementedError

    def machine_findings(self) -> Iterable[Finding]:
        """What the doctor says of this machine."""
        return ()

    def cache_folders(self) -> dict[str, CacheFolder]:
        """Folders of its own under `cache_dir`, by name."""
        return {}

    def checkpoint_problems(self, config: RunConfig, ranks_before: int) -> list[Problem]:
        """Why a checkpoint that `ranks_before` ranks have written cannot be taken up under this configuration."""
        return []

    def convert_checkpoint(
        self, checkpoint: Checkpoint, ranks: int, log: Path, say: Say, stop_asked: Callable[[], bool]
    ) -> None:
        """Make a checkpoint usable on this number of ranks. Raises ConversionStopped, RequestError."""
        return

    def rerender(self, config: RunConfig, run_dir: Path) -> dict[str, str]:
        """Files of a run that is resumed: what they say, but for what a resume may change."""
        return {}

    def file_of_run(self, run_dir: Path) -> EngineFile | None:
        """The engine's rendered file in a run folder."""
        return None

    def standalone(self, config: RunConfig) -> Standalone | None:
        """Its lines in a script that runs without the runner; None where there is no such script yet."""
        return None
