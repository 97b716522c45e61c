"""Overrides on a configuration that is finished already: what `resume RUN_DIR key=value` means."""

from __future__ import annotations

from typing import Any

from hydra.core.override_parser.types import QuotedString

from runner.compose.app import group_options
from runner.compose.overrides import check_names, is_sweep, parse_overrides
from runner.compose.validation import is_key, key_names, validated
from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError


def with_changes(config: RunConfig, arguments: list[str]) -> tuple[RunConfig, frozenset[str]]:
    """The configuration with these keys set, and the keys.

    Raises:
        RequestError: for unknown keys, values out of range, several values, and choices from a group.
    """
    parsed = parse_overrides(arguments)
    groups = group_options()
    problems = check_names(parsed, groups, is_key, key_names())
    for item in parsed:
        if item.key_or_group in groups:
            problems.append(
                Problem(
                    item.key_or_group,
                    item.value(),
                    "a group cannot be chosen anew at a resume",
                    "leave it out, or start a new run",
                )
            )
        elif item.key_or_group.startswith("hydra"):
            problems.append(
                Problem(
                    item.key_or_group,
                    None,
                    "a resume continues in the run's own folder and configuration",
                    "leave it out",
                )
            )
        elif is_sweep(item):
            problems.append(Problem(item.key_or_group, None, "a resume continues one run", "give one value"))
    if problems:
        raise RequestError(problems)
    plain = config.model_dump(mode="json")
    for item in parsed:
        _set(plain, item.key_or_group.split("."), _plain(item.value()))
    return validated(plain), frozenset(item.key_or_group for item in parsed)


def _set(plain: dict[str, Any], path: list[str], value: object) -> None:
    node = plain
    for name in path[:-1]:
        node = node.setdefault(name, {})
    node[path[-1]] = value


def _plain(value: object) -> object:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return value
