"""A user's option files, looked at before Hydra composes: it dies of some shapes without saying which file has them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner import paths
from runner.compose.overrides import ADDED_GROUPS, SET_BY_GROUP, SEVERAL_OPTIONS
from runner.compose.references import unreadable_references
from runner.config.catalogue import option_files, read_yaml
from runner.errors import Problem, RequestError

Option = tuple[str, str]  # group and name
GROUPS = (*dict.fromkeys(SET_BY_GROUP.values()), *SEVERAL_OPTIONS, *ADDED_GROUPS)


def option_problems(chosen: Iterable[Option]) -> list[Problem]:
    """Why files of `./conf` cannot be composed: those of the chosen options, and those their defaults lists lead to."""
    problems: dict[str, Problem] = {}
    for option in chosen:
        for problem in _walk(option, ()):
            problems.setdefault(problem.line(), problem)
    return list(problems.values())


def _walk(option: Option, trail: tuple[Path, ...]) -> list[Problem]:
    root = paths.user_conf_dir()
    path = root / option[0] / f"{option[1]}.yaml" if root else None
    if path is None or not path.is_file():
        return []
    if path in trail:
        way = " → ".join(step.name for step in (*trail[trail.index(path) :], path))
        return [
            Problem(
                str(path), None, f"its defaults list leads back to itself ({way})", "take that entry out of `defaults`"
            )
        ]
    try:
        content = read_yaml(path)
    except RequestError as error:
        return error.problems
    wrong = _wrong_shape(content)
    if wrong:
        return [Problem(str(path), None, wrong, "fix the file")]
    settings = content if isinstance(content, dict) else {}
    entries = settings.get("defaults") or []
    found = _wrong_entries(path, option[0], entries) + _groups_as_keys(path, option[0], settings)
    found += [_unreadable(path, key, value) for key, value in unreadable_references(content)]
    if found:
        return found
    return [
        problem
        for entry in entries
        for following in _options(entry, option[0])
        for problem in _walk(following, (*trail, path))
    ]


def _unreadable(path: Path, key: str, value: str) -> Problem:
    fix = "write ${KEY}, or for the text itself a backslash before it: \\${"
    return Problem(f"{path}: {key}", value, "this reference cannot be read", fix)


def _wrong_shape(content: object) -> str:
    if content is None:
        return ""
    if not isinstance(content, dict):
        return "an option's file holds keys and values, this one holds something else"
    entries = content.get("defaults")
    if entries is not None and not (
        isinstance(entries, list)
        and all(isinstance(entry, str) or (isinstance(entry, dict) and len(entry) == 1) for entry in entries)
    ):
        return "`defaults` must be a list of options, such as `- override /zero_stage: '0'`"
    return ""


def _groups_as_keys(path: Path, own_group: str, content: dict[str, Any]) -> list[Problem]:
    """A group chosen by a plain key: Hydra would keep the group's default beside it, or lose the word altogether."""
    if "@package _global_" not in path.read_text(encoding="utf-8"):
        return []
    chosen = {key: content[key] for key in GROUPS if key in content and not isinstance(content[key], dict)}
    for key, group in SET_BY_GROUP.items():
        section, _, name = key.partition(".")
        inside = content.get(section)
        if group != own_group and isinstance(inside, dict) and name in inside:
            chosen[key] = inside[name]
    return [_group_as_key(path, own_group, key, value) for key, value in chosen.items()]


def _group_as_key(path: Path, own_group: str, key: str, value: object) -> Problem:
    group = SET_BY_GROUP.get(key, key)
    why = "a group is chosen in a defaults list or on the command line; as a plain key it has no effect"
    return Problem(f"{path}: {key}", value, why, _choice(f"- override /{group}", own_group, group, value))


def _wrong_entries(path: Path, own_group: str, entries: list[Any]) -> list[Problem]:
    """Names that YAML reads as truth values or numbers (no, off, 2), and choices that come too late for this file."""
    problems = []
    for key, name in (pair for entry in entries if isinstance(entry, dict) for pair in entry.items()):
        group = str(key).split()[-1].partition("@")[0].lstrip("/")
        if name is not None and not isinstance(name, (str, list)):
            kind = "a truth value" if isinstance(name, bool) else "a number"
            why = f"YAML reads this name as {kind}, and a name is text"
        elif str(key).startswith("override ") and not _may_choose(own_group, group):
            why = f"{group} is chosen before the files of {own_group} are read"
        else:
            continue
        problems.append(Problem(f"{path}: {key}", name, why, _choice(f"- {key}", own_group, group, name)))
    return problems


def _choice(start: str, own_group: str, group: str, value: object) -> str:
    """How an option is chosen: the line of the defaults list, or on the command line; with the options, where `value`
    is none.
    """
    options = sorted(option_files(group))
    name = str(value) if str(value) in options else "OPTION"
    among = "" if name in options else f" (OPTION is one of {', '.join(options)})"
    if not _may_choose(own_group, group):
        return f"leave it out of the file and type {'+' if group in ADDED_GROUPS else ''}{group}={name}{among}"
    return f"write `{start}: {name if name.isidentifier() else json.dumps(name)}` under `defaults:`{among}"


def _may_choose(own_group: str, group: str) -> bool:
    """Whether a file of one group may choose from another: Hydra visits the primary list from its end."""
    primary = read_yaml(paths.conf_dir() / "config.yaml")
    entries = primary["defaults"] if isinstance(primary, dict) else []
    order = [key for entry in entries if isinstance(entry, dict) for key in entry]
    if own_group not in order:
        return group in order  # added at the end, so visited first
    return group in order[: order.index(own_group)] or group not in (*order, *ADDED_GROUPS)


def _options(entry: str | dict[Any, Any], group: str) -> list[Option]:
    """The options that an entry of a defaults list of `group` names."""
    if isinstance(entry, str):
        folder, _, name = entry.rpartition("/")
        return [(folder.lstrip("/") if folder.startswith("/") else f"{group}/{folder}".rstrip("/"), name)]
    [(key, names)] = entry.items()
    word = str(key).split()[-1].partition("@")[0]
    folder = word.lstrip("/") if word.startswith("/") else f"{group}/{word}"
    return [(folder, str(name)) for name in (names if isinstance(names, list) else [names])]
