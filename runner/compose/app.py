"""Hydra, driven from Python: one call composes one run.

What Hydra's own command line would do is kept (defaults list, groups, override grammar, `hydra.run.dir`,
search path), what stands in a user's way is not (integers as choices, tracebacks, silent `+key`s).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from runner import paths
from runner.compose import overrides as typed_overrides
from runner.compose.adapter_rate import with_adapter_rate
from runner.compose.model_options import without_foreign_options
from runner.compose.option_files import option_problems
from runner.compose.references import growing_references
from runner.compose.validation import OPEN_SECTIONS, WrongValues, broken_nodes, is_key, key_names, to_run_config
from runner.config.catalogue import option_files, read_yaml
from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError

_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_SWEEP_KEYS = ("hydra.sweep.", "hydra.sweeper.", "hydra/sweeper", "hydra.launcher.", "hydra/launcher")
DEFAULTS_NODE = "runner_defaults"


@dataclass(frozen=True)
class Composed:
    """One composed run: what was typed, the typed configuration, where it goes, what was chosen from each group."""

    config: RunConfig
    overrides: list[str]
    run_dir: Path
    choices: dict[str, str]
    explicit: frozenset[str] = field(default_factory=frozenset)


class WrongRequest(RequestError):
    """What composing found wrong, and what is left to check.

    Attributes:
        rest: the run without what is wrong; None where nothing could be composed.
        wrong: keys and groups left out of it.
    """

    def __init__(self, problems: list[Problem], rest: Composed | None, wrong: frozenset[str]) -> None:
        super().__init__(problems)
        self.rest, self.wrong = rest, wrong


def compose_run(arguments: list[str]) -> Composed:
    """Compose the run that these overrides describe.

    Args:
        arguments: overrides as typed, e.g. `["model=deberta_xl", "zero_stage=2"]`.

    Raises:
        RequestError: with every mistake in the request; a WrongRequest where there is more to check.
    """
    start()
    try:
        usable, problems = usable_overrides(arguments)
        several = [item for item in usable if typed_overrides.is_sweep(item)]
        problems += [_sweep_without_multirun(item) for item in several] + _for_sweeps_only(usable)
        usable = [item for item in usable if item not in several and not item.key_or_group.startswith(_SWEEP_KEYS)]
        if not problems:
            return _composed(usable)
        raise _with_wrong_values(problems, usable)
    finally:
        GlobalHydra.instance().clear()


def _with_wrong_values(problems: list[Problem], usable: list[Override]) -> WrongRequest:
    """Problems of names and syntax, and those of the values that were typed with them.

    What was not typed is left alone: it may follow from what could not be read.
    """
    wrong = frozenset(problem.key.lstrip("+~") for problem in problems)
    if not usable:  # the defaults have no mistakes; composing them takes a tenth of a second
        return WrongRequest(problems, None, wrong)
    try:
        rest = _composed(usable)
    except WrongRequest as error:
        return WrongRequest(problems + _of_typed(error, usable), error.rest, wrong | error.wrong)
    except RequestError:
        return WrongRequest(problems, None, wrong)
    return WrongRequest(problems, rest, wrong)


def _composed(overrides: list[Override]) -> Composed:
    return from_tree(_hydra_compose(ready(overrides)), [item.input_line or "" for item in overrides])


def wrong_values(overrides: list[Override]) -> list[Problem]:
    """Problems of these overrides' own values, whatever other choices are still to come."""
    try:
        _composed(overrides)
    except WrongRequest as error:
        return _of_typed(error, overrides)
    except RequestError:
        pass  # without the other choices nothing can be composed
    return []


def _of_typed(error: RequestError, overrides: list[Override]) -> list[Problem]:
    """Problems of the values these overrides name themselves; what a reference leads to, other choices may decide."""
    typed = [
        item.key_or_group
        for item in overrides
        if "${" not in (item.input_line or "") or item.key_or_group == "hydra.sweep.dir"
    ]
    return [
        problem
        for problem in error.problems
        if problem.key in typed or problem.key.startswith(tuple(f"{name}." for name in typed))
    ]


def _sweep_without_multirun(item: Override) -> Problem:
    key, _, value = (item.input_line or "").partition("=")
    return Problem(
        key,
        value,
        "several values need a multirun",
        f"add -m to run each, or type '{key}={typed_overrides.quoted(value)}' for one value with a comma",
    )


def _for_sweeps_only(overrides: list[Override]) -> list[Problem]:
    typed = [(item.input_line or "").partition("=") for item in overrides if item.key_or_group.startswith(_SWEEP_KEYS)]
    return [
        Problem(key, value, "this has no effect: only a multirun reads it", "add -m or leave it out")
        for key, _, value in typed
    ]


def start() -> None:
    """Initialise Hydra on the runner's groups and on `./conf` of the current folder."""
    GlobalHydra.instance().clear()
    if not OmegaConf.has_resolver("run_tag"):
        # No two runs of one second share a folder: the process id tells them apart.
        OmegaConf.register_new_resolver("run_tag", lambda _="": f"{os.getpid():x}", use_cache=True)
    ConfigStore.instance().store(name=DEFAULTS_NODE, node=RunConfig().model_dump(mode="json"))
    initialize_config_dir(config_dir=str(paths.conf_dir()), version_base="1.3", job_name="run")


def usable_overrides(arguments: list[str]) -> tuple[list[Override], list[Problem]]:
    """The overrides that can be read and whose names exist, and what is wrong with the others and with the files they
    choose.
    """
    parsed, problems = typed_overrides.readable_overrides(arguments)
    groups, keys = group_options(), key_names()
    problems += typed_overrides.check_names(parsed, groups, is_key, keys) + hidden_user_options()
    usable = [item for item in parsed if not typed_overrides.name_problems(item, groups, is_key, keys)]
    of_files = {id(item): file_problems(item, groups) for item in usable}
    problems += [problem for found in of_files.values() for problem in found]
    return [item for item in usable if not of_files[id(item)]], problems


def file_problems(item: Override, groups: dict[str, list[str]]) -> list[Problem]:
    """What is wrong with the files that an override chooses from a group; Hydra must not read those."""
    if item.key_or_group not in groups:
        return []
    return option_problems((item.key_or_group, str(name)) for name in typed_overrides.options_of(item))


def ready(overrides: list[Override]) -> list[str]:
    """Overrides with checked names, as Hydra takes them."""
    groups = set(group_options())
    return [
        *_search_path(overrides),
        *(_addable(typed_overrides.group_choices_as_text(item, groups)) for item in overrides),
    ]


def _addable(text: str) -> str:
    """Inside an open mapping a new key needs no `+` from the user."""
    key = text.partition("=")[0]
    return (
        f"++{text}"
        if key in OPEN_SECTIONS or key.startswith(tuple(f"{section}." for section in OPEN_SECTIONS))
        else text
    )


def _search_path(overrides: list[Override]) -> list[str]:
    mine = paths.user_conf_dir()
    if mine is None or any(item.key_or_group == "hydra.searchpath" for item in overrides):
        return []
    return [f"hydra.searchpath=[{typed_overrides.quoted('file://' + str(mine))}]"]


def group_options() -> dict[str, list[str]]:
    """Options by group, the runner's own and those in `./conf`."""
    found: dict[str, set[str]] = {}
    for root in filter(None, (paths.conf_dir(), paths.user_conf_dir())):
        for folder in (path for path in root.iterdir() if path.is_dir()):
            found.setdefault(folder.name, set()).update(path.stem for path in folder.glob("*.yaml"))
    return {group: sorted(options) for group, options in sorted(found.items())}


def hidden_user_options() -> list[Problem]:
    """A user's option with the name of one of ours would never be read: Hydra takes the first on its path."""
    mine, ours = paths.user_conf_dir(), paths.conf_dir()
    if mine is None:
        return []
    twins = [path for path in mine.glob("*/*.yaml") if (ours / path.relative_to(mine)).exists()]
    return [
        Problem(
            str(path), None, "the runner has an option of this name, which would be used instead", "rename the file"
        )
        for path in twins
    ]


def _hydra_compose(overrides: list[str]) -> DictConfig:
    with composing():
        return compose("config", overrides=overrides, return_hydra_config=True)


@contextlib.contextmanager
def composing() -> Iterator[None]:
    """Whatever Hydra and OmegaConf die of while they compose is a mistake in the request: only overrides and YAML files
    go in.

    Raises:
        RequestError: with their own words.
    """
    try:
        yield
    except RequestError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        raise RequestError(hydra_problem(error)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RequestError(
            Problem(
                "configuration", None, "a YAML file cannot be read: " + " ".join(str(error).split()), "fix the file"
            )
        ) from None
    except Exception as error:  # noqa: BLE001
        said = " ".join(str(error).split())
        why = f"Hydra cannot compose this ({type(error).__name__}: {said})"
        raise RequestError(
            Problem("configuration", None, why, "check the hydra.* overrides and the files in ./conf")
        ) from None


def hydra_problem(error: Exception) -> Problem:
    """An error of Hydra or OmegaConf as one line with the key, where it names one."""
    not_optional = re.search(r"'(hydra\.(?:run|sweep)\.\w+)' is not Optional", f"{error} {error.__cause__}")
    if not_optional:
        key = not_optional[1]
        return Problem(key, "null", "a run needs a folder", f"leave it out, or set {key}=DIR")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = f" ({str(error.__cause__).splitlines()[0]})" if error.__cause__ and str(error.__cause__) else ""
    return Problem("configuration", None, " ".join(lines[:3]) + cause, "")


def marked_missing(chosen: dict[str, str]) -> list[str]:
    """Keys that the chosen options mark with `???`.

    Merging lets the mark disappear behind the schema's default, so the files are asked.
    """
    keys: list[str] = []
    for group, option in chosen.items():
        path = option_files(group).get(option)
        text = path.read_text(encoding="utf-8") if path is not None else ""
        if path is None or "???" not in text:
            continue
        package = _PACKAGE.search(text)
        prefix = "" if package and package[1] == "_global_" else f"{package[1] if package else group}."
        content = _without_references(read_yaml(path))
        missing = OmegaConf.missing_keys(OmegaConf.create(content if isinstance(content, dict) else {}))
        keys += [f"{prefix}{key}" for key in sorted({name.partition("[")[0] for name in missing})]  # a list as a whole
    return keys


def _without_references(node: object) -> object:
    """A tree whose `${…}` are left out: OmegaConf's own search for missing keys dies on the first broken one."""
    if isinstance(node, dict):
        return {key: _without_references(value) for key, value in node.items() if key != "defaults"}
    if isinstance(node, list):
        return [_without_references(value) for value in node]
    return None if isinstance(node, str) and "${" in node else node


def from_tree(tree: DictConfig, arguments: list[str]) -> Composed:
    """The typed run behind a composed Hydra tree (which still holds its `hydra` node).

    Raises:
        WrongRequest: see `to_run_config`.
    """
    growing = growing_references(cast(dict[str, Any], OmegaConf.to_container(tree, resolve=False)))
    if growing:
        raise WrongRequest(growing, None, frozenset())
    hydra = tree.hydra
    chosen = {str(group): str(option) for group, option in hydra.runtime.choices.items() if "/" not in str(group)}
    names = frozenset(item.key_or_group for item in typed_overrides.parse_overrides(arguments))
    problems = broken_nodes(hydra.run, "hydra.run.") + [
        item
        for item in broken_nodes(hydra.sweep, "hydra.sweep.")
        if item.key == "hydra.sweep.dir" and item.key in names
    ]
    if problems:
        raise WrongRequest(problems, None, frozenset())
    run_dir = Path(str(hydra.run.dir)).expanduser().absolute()
    with open_dict(tree):
        del tree["hydra"]
    composed = partial(Composed, overrides=list(arguments), run_dir=run_dir, choices=chosen, explicit=names)
    try:
        config = to_run_config(tree, [key for key in marked_missing(chosen) if key not in names])
        return composed(with_adapter_rate(without_foreign_options(config, chosen, names), names))
    except WrongValues as error:
        rest = composed(error.rest) if error.rest else None
        raise WrongRequest(error.problems, rest, frozenset(problem.key for problem in error.problems)) from None
    except RequestError as error:
        raise WrongRequest(error.problems, None, frozenset()) from None
