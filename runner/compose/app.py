"""Hydra, driven from Python: one call composes one run.

What Hydra's own command line would do is kept (defaults list, groups, override grammar, `hydra.run.dir`,
search path), what stands in a user's way is not (integers as choices, tracebacks, silent `+key`s).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from runner import places
from runner.catalogue import option_files
from runner.compose import overrides as typed_overrides
from runner.compose.typed import is_key, key_names, to_run_config
from runner.errors import Problem, RequestError
from runner.schema import RunConfig

_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
DEFAULTS_NODE = "runner_defaults"


@dataclass(frozen=True)
class Composed:
    """One composed run: what was typed, the typed configuration, where it goes, what was chosen from each group."""

    config: RunConfig
    overrides: list[str]
    run_dir: Path
    choices: dict[str, str]
    explicit: frozenset[str] = field(default_factory=frozenset)


def compose_run(arguments: list[str]) -> Composed:
    """Compose the run that these overrides describe.

    Args:
        arguments: overrides as typed, e.g. `["model=deberta_xl", "zero_stage=2"]`.

    Raises:
        RequestError: with every mistake in the request.
    """
    start()
    try:
        checked = checked_overrides(arguments)
        sweeps = [item for item in typed_overrides.parse_overrides(arguments) if typed_overrides.is_sweep(item)]
        if sweeps:
            raise RequestError([_sweep_without_multirun(item) for item in sweeps])
        tree = _hydra_compose(checked)
        return from_tree(tree, arguments)
    finally:
        GlobalHydra.instance().clear()


def _sweep_without_multirun(item: Any) -> Problem:
    key, _, value = (item.input_line or "").partition("=")
    return Problem(key, value, "several values need a multirun", f"add -m to run each, or type '{key}={typed_overrides.quoted(value)}' for one value with a comma")


def start() -> None:
    """Initialise Hydra on the runner's groups and on `./conf` of the current folder."""
    GlobalHydra.instance().clear()
    if not OmegaConf.has_resolver("run_tag"):
        # No two runs of one second share a folder: the process id tells them apart.
        OmegaConf.register_new_resolver("run_tag", lambda _="": f"{os.getpid():x}", use_cache=True)
    ConfigStore.instance().store(name=DEFAULTS_NODE, node=RunConfig().model_dump(mode="json"))
    initialize_config_dir(config_dir=str(places.conf_dir()), version_base="1.3", job_name="run")


def checked_overrides(arguments: list[str]) -> list[str]:
    """The overrides as Hydra takes them, after every name in them was checked.

    Raises:
        RequestError: for arguments that are no overrides, unknown keys and unknown options.
    """
    parsed = typed_overrides.parse_overrides(arguments)
    groups = group_options()
    problems = typed_overrides.check_names(parsed, groups, is_key, key_names())
    problems += hidden_user_options()
    if problems:
        raise RequestError(problems)
    ready = [typed_overrides.group_choices_as_text(item, set(groups)) for item in parsed]
    ready = [_addable(text) for text in ready]
    return [*_search_path(arguments), *ready]


def _addable(text: str) -> str:
    """Inside an open mapping a new key needs no `+` from the user."""
    key = text.partition("=")[0]
    opened = ("model.config.", "task.", "dataset.columns.")
    return f"++{text}" if key.startswith(opened) else text


def _search_path(arguments: list[str]) -> list[str]:
    mine = places.user_conf_dir()
    if mine is None or any(text.startswith("hydra.searchpath") for text in arguments):
        return []
    return [f"hydra.searchpath=[{typed_overrides.quoted('file://' + str(mine))}]"]


def group_options() -> dict[str, list[str]]:
    """Options by group, the runner's own and those in `./conf`."""
    found: dict[str, set[str]] = {}
    for root in filter(None, (places.conf_dir(), places.user_conf_dir())):
        for folder in (path for path in root.iterdir() if path.is_dir()):
            found.setdefault(folder.name, set()).update(path.stem for path in folder.glob("*.yaml"))
    return {group: sorted(options) for group, options in sorted(found.items())}


def hidden_user_options() -> list[Problem]:
    """A user's option with the name of one of ours would never be read: Hydra takes the first on its path."""
    mine, ours = places.user_conf_dir(), places.conf_dir()
    if mine is None:
        return []
    twins = [path for path in mine.glob("*/*.yaml") if (ours / path.relative_to(mine)).exists()]
    return [Problem(str(path), None, "the runner has an option of this name, which would be used instead", "rename the file") for path in twins]


def _hydra_compose(ready: list[str]) -> DictConfig:
    try:
        return compose("config", overrides=ready, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise RequestError(_hydra_problem(error)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RequestError(Problem("configuration", None, "a YAML file cannot be read: " + " ".join(str(error).split()), "mend the file")) from None


def _hydra_problem(error: Exception) -> Problem:
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
        keys += [f"{prefix}{key}" for key in sorted(OmegaConf.missing_keys(OmegaConf.create(_without_references(yaml.safe_load(text)))))]
    return keys


def _without_references(node: Any) -> Any:
    """A tree whose `${…}` are left out: OmegaConf's own search for missing keys dies on the first broken one."""
    if isinstance(node, dict):
        return {key: _without_references(value) for key, value in node.items() if key != "defaults"}
    return None if isinstance(node, str) and "${" in node else node


def from_tree(tree: DictConfig, arguments: list[str]) -> Composed:
    """The typed run behind a composed Hydra tree (which still holds its `hydra` node).

    Raises:
        RequestError: see `to_run_config`.
    """
    hydra = tree.hydra
    run_dir = Path(str(hydra.run.dir)).absolute()
    chosen = {str(group): str(option) for group, option in hydra.runtime.choices.items() if "/" not in str(group)}
    with open_dict(tree):
        del tree["hydra"]
    names = frozenset(item.key_or_group for item in typed_overrides.parse_overrides(arguments))
    config = to_run_config(tree, [key for key in marked_missing(chosen) if key not in names])
    return Composed(config=config, overrides=list(arguments), run_dir=run_dir, choices=chosen, explicit=names)
