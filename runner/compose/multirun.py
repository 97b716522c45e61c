"""Hydra's sweep machinery with our cells: a sweeper says which overrides, the launcher composes them all, then hands
them on.

Any of Hydra's sweepers can drive it (the product of values by default, Optuna by `hydra/sweeper=optuna`):
what reaches a sweeper from here is one number a cell, the recipe's metric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from runner.compat import hydra_plugins
from runner.compose import app
from runner.compose import overrides as typed_overrides
from runner.compose.app import Composed
from runner.compose.validation import is_key, key_names
from runner.errors import Problem, RequestError


@dataclass(frozen=True)
class ComposedCell:
    """One job of a sweep, composed before the first one runs.

    Attributes:
        job: its number in the sweep, from 0.
        overrides: all its overrides, what was typed for every cell included.
        run_dir: `hydra.sweep.dir`/`hydra.sweep.subdir`.
        composed: the typed run; None where the configuration is wrong.
        problems: why it is wrong.
        plain: the untyped configuration where it is wrong but could be composed; for its record.
    """

    job: int
    overrides: list[str]
    sweep_dir: Path
    run_dir: Path
    composed: Composed | None
    problems: list[Problem] = field(default_factory=list)
    plain: dict[str, Any] = field(default_factory=dict)


RunBatch = Callable[[list[ComposedCell]], list[float | None]]


def run_multirun(arguments: list[str], run_batch: RunBatch) -> None:
    """Compose the cells that the overrides describe and give them to `run_batch`, in one batch (Optuna: in several).

    Args:
        arguments: overrides as typed, without `-m`.
        run_batch: runs cells; returns each one's value of the recipe's metric, None where there is none.

    Raises:
        RequestError: for mistakes that concern every cell. One wrong cell among others is given to `run_batch`.
    """
    app.start()
    try:
        ready = _checked(arguments)
        hydra_plugins.register(
            __name__,
            {
                "hydra/launcher": (CellsLauncher, {}),
                "hydra/sweeper": (ProductSweeper, {"params": None, "max_batch_size": None}),
            },
        )
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None, "started above"
        hydra.multirun("config", task_function=run_batch, overrides=ready, with_log_configuration=False)  # type: ignore[arg-type]
    except (HydraException, OmegaConfBaseException) as error:
        raise RequestError(app.hydra_problem(error)) from None
    finally:
        GlobalHydra.instance().clear()


def _checked(arguments: list[str]) -> list[str]:
    """As for one run, but of several values only those that are all wrong stop the sweep."""
    parsed, problems = typed_overrides.readable_overrides(arguments)
    groups = app.group_options()
    problems += app.hidden_user_options()
    fixed = []  # typed once, so the same in every cell: where it is wrong, the sweep is
    for item in parsed:
        wrong = (
            []
            if _some_choice_exists(item, groups)
            else typed_overrides.check_names([item], groups, is_key, key_names())
        )
        wrong += app.file_problems(item, groups)
        problems += wrong + _for_whole_sweep(item)
        if not (wrong or item.is_sweep_override() or item.key_or_group.startswith(("hydra.sweeper", "hydra/"))):
            fixed.append(item)
    problems += app.wrong_values(fixed)
    if problems:
        raise RequestError(problems)
    return app.ready(parsed)


def _for_whole_sweep(item: Override) -> list[Problem]:
    if item.key_or_group == "hydra/launcher":
        return [
            Problem(
                "hydra/launcher",
                (item.input_line or "").partition("=")[2],
                "cells run one after the other, because they share the devices",
                "leave it out",
            )
        ]
    if item.key_or_group in ("sweep.rerun", "sweep.on_error") and item.is_sweep_override():
        return [
            Problem(
                item.key_or_group,
                (item.input_line or "").partition("=")[2],
                "this says how the whole sweep goes",
                "give it one value",
            )
        ]
    return []


def _some_choice_exists(item: Override, groups: dict[str, list[str]]) -> bool:
    options = groups.get(item.key_or_group)
    return (
        options is not None
        and item.is_sweep_override()
        and any(str(choice) in options for choice in typed_overrides.choices(item))
    )


class CellsLauncher(Launcher):
    """Composes every job first, so that a file edited later has no effect, then runs them through `run_batch`."""

    __module__ = hydra_plugins.PLUGIN_PACKAGE

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra; `task_function` is the `run_batch` that was given to `run_multirun`."""
        self._loader, self._config, self._run_batch = hydra_context.config_loader, config, task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """One batch of jobs."""
        if not str(self._config.hydra.sweeper._target_).startswith(hydra_plugins.PLUGIN_PACKAGE):
            # other sweepers write their results there
            make_folder(Path(str(self._config.hydra.sweep.dir)).expanduser())
        cells = [
            self._compose(initial_job_idx + index, list(overrides)) for index, overrides in enumerate(job_overrides)
        ]
        return [_job_return(cell, value) for cell, value in zip(cells, self._run_batch(cells), strict=True)]

    def _compose(self, job: int, overrides: list[str]) -> ComposedCell:
        sweep_dir = Path(str(self._config.hydra.sweep.dir)).expanduser().absolute()
        plain: dict[str, Any] = {}
        cell = ComposedCell(job, overrides, sweep_dir, sweep_dir / str(job), None)
        try:
            with app.composing():
                tree = self._tree(job, overrides)
            run_dir = sweep_dir / str(tree.hydra.sweep.subdir)
            plain = {
                str(key): value
                for key, value in cast(dict[str, Any], OmegaConf.to_container(tree, resolve=False)).items()
                if key != "hydra"
            }
            composed = replace(app.from_tree(tree, overrides), run_dir=run_dir)
            return replace(cell, run_dir=run_dir, composed=composed)
        except RequestError as error:
            return replace(cell, problems=error.problems, plain=plain)
        except (HydraException, OmegaConfBaseException) as error:
            return replace(cell, problems=[app.hydra_problem(error)])

    def _tree(self, job: int, overrides: list[str]) -> DictConfig:
        groups = app.group_options()
        parsed = typed_overrides.parse_overrides(overrides)
        problems = typed_overrides.check_names(parsed, groups, is_key, key_names())
        if problems:
            raise RequestError(problems)
        tree: DictConfig = self._loader.load_sweep_config(self._config, app.ready(parsed))
        with open_dict(tree):
            tree.hydra.job.id, tree.hydra.job.num = str(job), job
        return tree


def make_folder(sweep_dir: Path) -> None:
    """Make the sweep's folder.

    Raises:
        RequestError: where it cannot be made.
    """
    try:
        sweep_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            Problem(
                "hydra.sweep.dir",
                sweep_dir,
                f"this folder cannot be made ({error.strerror})",
                "set hydra.sweep.dir=DIR",
            )
        ) from None


def _job_return(cell: ComposedCell, value: float | None) -> JobReturn:
    answer = JobReturn(overrides=cell.overrides, working_dir=str(cell.run_dir))
    answer.status = JobStatus.COMPLETED
    answer.return_value = float("nan") if value is None else value
    return answer


class ProductSweeper(Sweeper):
    """Every combination of the values, as Hydra's own, but a combination that cannot be composed is
    left to its cell.
    """

    __module__ = hydra_plugins.PLUGIN_PACKAGE

    def __init__(self, params: dict[str, Any] | None = None, max_batch_size: int | None = None) -> None:  # noqa: ARG002 (Hydra's name)
        self._params = dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra."""
        self._loader = hydra_context.config_loader
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        """All combinations of `hydra.sweeper.params` and of what was typed; the same key typed wins."""
        parser, groups = OverridesParser.create(config_loader=self._loader), set(app.group_options())
        prepared = [f"{key}={value}" for key, value in self._params.items()]
        typed_overrides.parse_overrides(prepared)  # refuses what Hydra would die of
        parsed = parser.parse_overrides([*prepared, *arguments])
        texts = [typed_overrides.group_choices_as_text(item, groups) for item in parsed]
        batches = hydra_plugins.combinations(parser.parse_overrides(texts))
        return [self._launcher.launch(batch, initial_job_idx=0) for batch in batches]
