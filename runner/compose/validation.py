"""From Hydra's untyped tree to `RunConfig`, with every mistake of type, range or reference listed at once."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, cast, get_args

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError, nearest


class WrongValues(RequestError):
    """Values of a composed run that are wrong.

    Attributes:
        rest: the run with the schema's defaults in their place; None where none can be had.
    """

    def __init__(self, problems: list[Problem], rest: RunConfig | None) -> None:
        super().__init__(problems)
        self.rest = rest


OPEN_SECTIONS = (
    "model.config",
    "task",
    "dataset.columns",
    "recipe.batch_by_launcher",
    "cluster.options",
    "cluster.conf",
    "tracker.tags",
)


def key_names(section: type[BaseModel] = RunConfig, prefix: str = "") -> list[str]:
    """Every dotted key of the schema, sections left out."""
    names = []
    for name, field in section.model_fields.items():
        nested = (
            field.annotation if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel) else None
        )
        names += key_names(nested, f"{prefix}{name}.") if nested else [f"{prefix}{name}"]
    return names


def is_key(name: str) -> bool:
    """Whether a run may set this dotted name: a key of the schema, or one inside an open mapping."""
    return name in _KEYS or any(name.startswith(f"{section}.") for section in OPEN_SECTIONS)


_KEYS = set(key_names())


def to_run_config(tree: DictConfig, unset: Collection[str] = ()) -> RunConfig:
    """Resolve and validate the whole tree.

    Args:
        unset: keys that a chosen option marks with `???` and nobody gave a value.

    Raises:
        RequestError: listing every missing value, unresolvable reference, unknown key, wrong type and value out of
            range.
    """
    found = [Problem(key, "???", "this value must be given", f"add {key}=VALUE") for key in unset]
    found += broken_nodes(tree, "")
    if found:
        raise RequestError(list({problem.key: problem for problem in reversed(found)}.values())[::-1])
    plain: Any = OmegaConf.to_container(tree, resolve=True)
    return validated(plain)


def validated(plain: dict[str, Any]) -> RunConfig:
    """A plain nested mapping as `RunConfig`.

    Raises:
        WrongValues: one problem per key that is unknown, of the wrong type or out of range.
    """
    try:
        return RunConfig.model_validate(plain)
    except ValidationError as error:
        problems = {detail["loc"]: _as_problem(detail) for detail in error.errors()}
        rest = _without(plain, {_dotted(detail["loc"]) for detail in error.errors()})
        raise WrongValues(_without_union_echoes(problems), rest) from None


def _without(plain: dict[str, Any], keys: set[str]) -> RunConfig | None:
    """The configuration with these keys left at the schema's defaults."""
    kept = copy.deepcopy(plain)
    for key in keys:
        *parents, leaf = key.split(".")
        node: Any = kept
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(leaf, None)
    try:
        return RunConfig.model_validate(kept)
    except ValidationError:
        return None


def _without_union_echoes(problems: dict[tuple[int | str, ...], Problem]) -> list[Problem]:
    """Pydantic reports one error per member of a union; keep the first for each key."""
    first: dict[str, Problem] = {}
    for problem in problems.values():
        first.setdefault(problem.key, problem)
    return list(first.values())


def broken_nodes(node: DictConfig | ListConfig, prefix: str) -> list[Problem]:
    """Walk every node, used or not: a `???` or a broken reference surfaces now, not in hour three."""
    problems: list[Problem] = []
    in_list = isinstance(node, ListConfig)
    names: list[Any] = list(range(len(node))) if in_list else list(node.keys())
    for name in names:
        # A list is set as a whole: Hydra takes no override for one of its places.
        key = prefix.rstrip(".") if in_list else f"{prefix}{name}"
        if OmegaConf.is_missing(node, name):
            problems.append(Problem(key, "???", "this value must be given", f"add {key}=VALUE"))
            continue
        try:
            child = node[name]
        except OmegaConfBaseException as error:
            raw = cast(Any, OmegaConf.to_container(node, resolve=False))[name]  # the text itself, unresolved
            problems.append(
                Problem(key, raw, f"this reference leads nowhere ({str(error).splitlines()[0]})", f"set {key}=VALUE")
            )
            continue
        if isinstance(child, (DictConfig, ListConfig)) and not OmegaConf.is_interpolation(node, name):
            problems += broken_nodes(child, f"{key}.")
    return problems


def _as_problem(detail: ErrorDetails) -> Problem:
    key = _dotted(detail["loc"])
    value = detail["input"]
    if detail["type"] == "extra_forbidden":
        near = nearest(key, _KEYS)
        return Problem(
            key, value, "no part of the runner reads this key", f"did you mean {near}?" if near else "remove it"
        )
    if detail["type"] == "finite_inside":
        return Problem(f"{key}.{detail['ctx']['inside']}", detail["ctx"]["found"], _reason(detail), "set another value")
    if isinstance(value, str) and detail["type"] == "model_type":
        return Problem(
            key,
            value,
            "this is a section with keys of its own, not a value",
            f"choose from the group with {key}=OPTION or set {key}.KEY=VALUE",
        )
    if detail["type"] == "string_type" and isinstance(value, (bool, int, float)):
        return Problem(
            key,
            value,
            "this is read as a number or a truth value, and text is meant",
            f"put it in quotes: '{key}=\"…\"'",
        )
    return Problem(key, value, _reason(detail), _allowed(key))


def _dotted(location: tuple[int | str, ...]) -> str:
    """`('train', 'epochs')` → `train.epochs`, without the names pydantic adds for the members of a union."""
    parts: list[str] = []
    for part in location:
        name = ".".join([*parts, str(part)])
        if (
            parts
            and ".".join(parts) in _KEYS
            and not any(".".join(parts).startswith(section) for section in OPEN_SECTIONS)
        ):
            break
        parts = name.split(".")
    return ".".join(parts)


def _reason(detail: ErrorDetails) -> str:
    message = detail["msg"]
    return message[0].lower() + message[1:]


def _allowed(key: str) -> str:
    """What the schema says of the key, as a hint."""
    field = field_of(key)
    if field is None:
        return ""
    literals = [str(arg) for arg in get_args(field.annotation) if isinstance(arg, str)]
    if literals:
        return f"use {key}={literals[0]}" + (f" (or {', '.join(literals[1:])})" if literals[1:] else "")
    example = "[" + ",".join(map(str, field.default)) + "]" if isinstance(field.default, tuple) else field.default
    return f"for example {key}={example}" if field.default not in (None, {}, [], "") else f"{field.description}"


def field_of(key: str) -> FieldInfo | None:
    """The pydantic field behind a dotted key, or None inside an open mapping."""
    section: Any = RunConfig
    *parents, leaf = key.split(".")
    for parent in parents:
        field = section.model_fields.get(parent) if hasattr(section, "model_fields") else None
        section = field.annotation if field else None
    return section.model_fields.get(leaf) if hasattr(section, "model_fields") else None
