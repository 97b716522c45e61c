"""The file as values: a regular file, each key once, every known key of its kind."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from runner.engines.deepspeed.user_json.known import (
    ALIASES,
    AUTO,
    FITS,
    KNOWN,
    OPEN_ENDED,
    REFUSED,
    REFUSED_WHEN_TRUE,
    WORDS,
    Kind,
)
from runner.errors import Problem, RequestError, nearest
from runner.regular_files import read_regular

FIX = "fix launcher.config_file"
MANY = 16  # known keys that a line no longer names one by one
_BLOCKS = (
    "zero_optimization",
    "optimizer",
    "scheduler",
    "bf16",
    "fp16",
    "aio",
)  # looked into before anything else is said
_INNER = (
    "optimizer.params",
    "scheduler.params",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_param",
)


def read(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        RequestError: when it is no regular file, no JSON, no object, has a key twice, or a block is a value.
    """
    try:
        content = json.loads(read_regular(path), object_pairs_hook=_each_key_once)
    except OSError as error:
        raise _refused(path, f"cannot be read ({error.strerror})", "set launcher.config_file=FILE") from None
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"is no JSON ({error})", "fix the file") from None
    if not isinstance(content, dict):
        raise _refused(path, "is no JSON object", "fix the file")
    stop_on_wrong_shapes(content)
    return content


def _refused(path: Path, why: str, fix: str) -> RequestError:
    return RequestError(Problem("launcher.config_file", path, why, fix))


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RequestError(
            [
                Problem(
                    name,
                    None,
                    "duplicate key in one block of launcher.config_file (the last one would win silently)",
                    "remove one of them",
                )
                for name in twice
            ]
        )
    return dict(pairs)


def stop_on_wrong_shapes(content: dict[str, Any]) -> None:
    """Blocks must be objects; null is none.

    Raises:
        RequestError: naming every one that is something else.
    """
    found = [(path, get(content, path)) for path in (*_BLOCKS, *_INNER) if has(content, path)]
    wrong = [(path, value) for path, value in found if not isinstance(value, dict)]
    if wrong:
        raise RequestError(
            [
                Problem(path, as_written(value), "this is a block of keys in a DeepSpeed JSON, not a value", FIX)
                for path, value in wrong
            ]
        )


def checked_values(content: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The content with numbers as numbers and without what is wrong; all that is wrong, and what
    was read as a number.
    """
    content, problems = _typed(content)
    problems += _renamed(content)
    for path, known in (KNOWN | OPEN_ENDED).items():
        block = get(content, path) if path else content
        for name in list(block) if isinstance(block, dict) else ():
            key = f"{path}.{name}" if path else name
            found = _wrong(key, block[name], known, open_ended=path in OPEN_ENDED)
            if found is not None:
                problems.append(found)
                del block[name]
            elif known.get(name) == "int" and isinstance(block[name], float):
                block[name] = int(block[name])
    return content, problems


def _wrong(key: str, value: object, known: dict[str, Kind], open_ended: bool) -> Problem | None:
    name = key.rpartition(".")[2]
    if key in REFUSED:
        return Problem(key, as_written(value), REFUSED[key][0], REFUSED[key][1])
    if name not in known:
        return None if open_ended else unknown_key(key, known)
    kind = known[name]
    if value != AUTO and not FITS[kind](value):
        return Problem(key, as_written(value), f"this must be {WORDS[kind]}", FIX)
    if key in REFUSED_WHEN_TRUE and value is not False:
        return Problem(key, as_written(value), *REFUSED_WHEN_TRUE[key])
    return None


def unknown_key(key: str, known: Collection[str]) -> Problem:
    """A key that DeepSpeed does not have, with the nearest that it has."""
    near = nearest(key.rpartition(".")[2], known)
    fix = (
        f"did you mean {near}?" if near else f"it has {', '.join(sorted(known))}" if len(known) < MANY else "remove it"
    )
    return Problem(key, None, "DeepSpeed has no such key (in launcher.config_file)", fix)


def as_written(value: object) -> str:
    """A value of the file in the file's own words."""
    return json.dumps(value, ensure_ascii=False)


def _typed(content: dict[str, Any], prefix: str = "") -> tuple[dict[str, Any], list[Problem]]:
    """A copy in which numbers that were written as text are numbers, with a notice for each; truth values as text are
    refused.
    """
    typed: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in content.items():
        typed[name] = value
        if isinstance(value, dict):
            typed[name], found = _typed(value, f"{prefix}{name}.")
            problems += found
        elif isinstance(value, str) and value.lower() in ("true", "false"):
            del typed[name]
            why = "this is text, not a truth value (DeepSpeed takes any text for true)"
            problems.append(
                Problem(f"{prefix}{name}", repr(value), why, f"write {value.lower()} without quotes in the JSON")
            )
        elif isinstance(value, str) and (number := _number(value)) is not None:
            typed[name] = number
            problems.append(
                Problem(f"{prefix}{name}", repr(value), f"text was read as the number {number}", "", "notice")
            )
    return typed, problems


def _number(text: str) -> int | float | None:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return None


def _renamed(content: dict[str, Any]) -> list[Problem]:
    """ZeRO-3's numbers under the names that DeepSpeed documents, in place."""
    zero = content.get("zero_optimization", {})
    both = [name for name in ALIASES if name in zero and ALIASES[name] in zero]
    for name in ALIASES.keys() & zero.keys() - set(both):
        zero[ALIASES[name]] = zero.pop(name)
    return [
        Problem(
            f"zero_optimization.{name}",
            zero.pop(name),
            f"is the same as {ALIASES[name]}, which stands in the file, too",
            "remove one of them",
        )
        for name in both
    ]


def has(content: dict[str, Any], path: str) -> bool:
    """Whether a dotted path stands in the file, whatever its value."""
    parent, _, name = path.rpartition(".")
    block = get(content, parent) if parent else content
    return isinstance(block, dict) and name in block


def get(content: dict[str, Any], path: str) -> Any:  # noqa: ANN401 (what a file holds there; known.py has the kinds)
    """The value at a dotted path, None where there is none."""
    node: Any = content
    for name in path.split("."):
        if not isinstance(node, dict) or name not in node:
            return None
        node = node[name]
    return node
