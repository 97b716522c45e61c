"""A user's option files, looked at before Hydra composes: it dies of some shapes without saying which file has them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner import paths
from runner.config.catalogue import read_yaml
from runner.errors import Problem, RequestError

Option = tuple[str, str]  # group and name


def option_problems(chosen: Iterable[Option]) -> list[Problem]:
    """Why files of `./conf` cannot be composed: those of the chosen options, and those their defaults lists lead to."""
    problems: dict[str, Problem] = {}
    for option in chosen:
        for problem in _walk(option, ()):
            problems.setdefault(problem.key, problem)
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
    entries = (content or {}).get("defaults") or []
    return [
        problem
        for entry in entries
        for following in _options(entry, option[0])
        for problem in _walk(following, (*trail, path))
    ]


def _wrong_shape(content: Any) -> str:
    if content is None:
        return ""
    if not isinstance(content, dict):
        return "an option's file holds keys and values, this one holds something else"
    if _holds_itself(content, ()):
        return "a value holds itself through its anchor (&NAME … *NAME)"
    entries = content.get("defaults")
    if entries is not None and not (
        isinstance(entries, list)
        and all(isinstance(entry, str) or (isinstance(entry, dict) and len(entry) == 1) for entry in entries)
    ):
        return "`defaults` must be a list of options, such as `- override /zero_stage: '0'`"
    return ""


def _holds_itself(node: Any, above: tuple[int, ...]) -> bool:
    if not isinstance(node, (dict, list)):
        return False
    inside = node.values() if isinstance(node, dict) else node
    return id(node) in above or any(_holds_itself(item, (*above, id(node))) for item in inside)


def _options(entry: str | dict[Any, Any], group: str) -> list[Option]:
    """The options that an entry of a defaults list of `group` names."""
    if isinstance(entry, str):
        folder, _, name = entry.rpartition("/")
        return [(folder.lstrip("/") if folder.startswith("/") else f"{group}/{folder}".rstrip("/"), name)]
    [(key, names)] = entry.items()
    word = str(key).split()[-1].partition("@")[0]
    folder = word.lstrip("/") if word.startswith("/") else f"{group}/{word}"
    return [(folder, str(name)) for name in (names if isinstance(names, list) else [names])]
