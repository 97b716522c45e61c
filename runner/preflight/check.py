"""All checks of a run, cheap ones first, and what they found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner import paths
from runner.compose import Composed
from runner.config import plan
from runner.config.resolve import resolve_machine, resolve_owners
from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.engines.base import EngineFile
from runner.errors import Problem, RequestError
from runner.preflight.assets import check_assets
from runner.preflight.contradictions import contradictions, wrong_family
from runner.preflight.dataset import check_data
from runner.preflight.devices import check_devices, check_precision, check_unreadable
from runner.preflight.model_config import builds_from_facts, check_architecture, check_bundled_tokenizer
from runner.preflight.model_folder import generation_notices
from runner.preflight.orphaned_processes import orphaned_processes
from runner.preflight.output_folders import check_places, occupied
from runner.preflight.port import check_port
from runner.preflight.software import check_software
from runner.preflight.unused_keys import unused_keys
from runner.recipe import Recipe, load_recipe
from runner.trackers import check_trackers


@dataclass
class Checked:
    """A run that may start.

    Attributes:
        config: resolved.
        run_dir: where it goes.
        notices: findings that do not stop it.
        own_file: a user's file for the engine, completed from the configuration; None without one.
        total_steps: optimizer steps, where known before the data is tokenised.
    """

    config: RunConfig
    run_dir: Path
    recipe: Recipe
    notices: list[Problem] = field(default_factory=list)
    own_file: EngineFile | None = None
    total_steps: int | None = None


def check(composed: Composed, starting: bool = True) -> Checked:
    """Resolve and check a composed run.

    Args:
        starting: False for a dry run: what only matters when ranks start (network, disk) is left out, what this machine
            lacks is a warning.

    Raises:
        RequestError: with every error found.
    """
    own_file, found = engine_of(composed.config).adopt(composed.config, composed.explicit)
    config, problems = resolve_machine(composed.config)
    engine = engine_of(config)
    here: Callable[[list[Problem]], list[Problem]] = list if starting else as_warnings
    problems = (
        found + problems + check_precision(config) + here(check_unreadable(composed.config) + check_devices(config))
    )
    recipe = _recipe(config, problems)
    problems += check_data(config, recipe, composed.explicit)  # counts the rows that others ask for
    problems += recipe.option_problems() if all(problem.severity != "error" for problem in problems) else []
    problems += check_bundled_tokenizer(config) + (
        check_architecture(config, recipe) if builds_from_facts(config) else []
    )
    problems += (
        contradictions(config, recipe)
        + unused_keys(config, composed.explicit)
        + here(check_software(config, recipe, own_file))
    )
    problems += generation_notices(config, recipe)
    if starting:
        problems += (
            check_assets(config)
            + check_port(config)
            + check_places(config, composed.run_dir)
            + engine.start_problems(config)
            + orphaned_processes()
            + ignored_files()
            + check_trackers(config)
        )
    else:
        problems += occupied(composed.run_dir)  # rendering, too, must not overwrite a run's files
    total = known_total_steps(config, recipe)
    problems += resolve_owners(config, total is not None) + engine.length_problems(own_file, config, total)
    stop_on_errors(problems)
    filled = engine.complete(own_file, config, total) if own_file is not None else None
    return Checked(config, composed.run_dir, recipe, problems, filled, total)


def _recipe(config: RunConfig, problems: list[Problem]) -> Recipe:
    """The recipe; where there is none to be had, the rest cannot be checked, and what was found so far is raised.

    A model of another family brings options and columns that this recipe cannot know.
    """
    family = wrong_family(config)
    if family or plan.world_size(config) < 1:
        stop_on_errors(problems + family)
    try:
        return load_recipe(config)
    except RequestError as error:
        raise RequestError([*problems, *error.problems]) from None


def as_warnings(problems: list[Problem]) -> list[Problem]:
    """What this machine lacks does not matter for files that are rendered for another one; it is said all the same."""
    return [replace(problem, severity="warning") if problem.severity == "error" else problem for problem in problems]


def ignored_files() -> list[Problem]:
    """Files that other tools would read, and that have no say here: named, so that nobody wonders
    whether they count.
    """
    accelerates, mine = paths.hf_home() / "accelerate" / "default_config.yaml", paths.user_conf_dir()
    found = [(accelerates, "accelerate's default configuration has no say here")]
    if mine is not None:
        found.append(
            (
                mine / "config.yaml",
                "the primary configuration is the runner's own; of this folder its groups are read, "
                "conf/GROUP/NAME.yaml",
            )
        )
    return [Problem("ignored", None, f"{path} ({why})", "", "notice") for path, why in found if path.exists()]


def known_total_steps(config: RunConfig, recipe: Recipe) -> int | None:
    """Optimizer steps of the run, where they follow from what is known by now."""
    rows = config.dataset.rows.get("train")
    if config.mode == "evaluate":
        return 1
    if rows and recipe.keeps_rows:
        limit = config.dataset.max_train_rows
        return plan.total_steps(min(rows, limit) if limit else rows, config)
    return None


def stop_on_errors(problems: list[Problem]) -> None:
    """Raise all errors at once, warnings and notices after them."""
    if any(problem.severity == "error" for problem in problems):
        raise RequestError(sorted(problems, key=lambda problem: ("error", "warning", "notice").index(problem.severity)))
