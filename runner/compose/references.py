"""References (`${section.key}`) in a composed tree: how long their text grows when each is written out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf.errors import GrammarParseError
from omegaconf.grammar_parser import parse

from runner.config.yaml_shape import MOST_VALUES
from runner.errors import Problem

_NAME = re.compile(r"[\w.-]+")


def growing_references(tree: dict[str, Any]) -> list[Problem]:
    """Values that hold more than 100,000 references and characters once their references are followed, counted without
    following them: twenty lines that each name the next one twice would take minutes.

    Args:
        tree: unresolved, as OmegaConf gives it with `resolve=False`.
    """
    sizes: dict[str, int] = {}
    for path, _ in _leaves(tree, ""):
        if _size(tree, path, sizes) > MOST_VALUES:
            why = f"with its references written out it holds more than {MOST_VALUES:,} values"
            return [Problem(path, None, why, f"set {path.partition('[')[0]}=VALUE, or fix the file that sets it")]
    return []


def unreadable_references(content: object) -> list[tuple[str, str]]:
    """Key and value of each text with a `${` that is no reference; Hydra names neither file nor key."""
    found = []
    for path, value in _leaves(content, ""):
        if isinstance(value, str) and "${" in value:
            try:
                parse(value)
            except GrammarParseError:
                found.append((path, value))
    return found


def _leaves(node: object, path: str) -> Iterator[tuple[str, object]]:
    """Dotted path and value of everything that is no mapping and no list."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _leaves(value, f"{path}.{name}" if path else str(name))
    elif isinstance(node, list):
        for place, value in enumerate(node):
            yield from _leaves(value, f"{path}[{place}]")
    else:
        yield path, node


def _size(tree: dict[str, Any], path: str, sizes: dict[str, int]) -> int:
    """References and characters behind a path; a circle counts once, OmegaConf names it."""
    if path not in sizes:
        sizes[path] = 1  # while it is counted
        total = 0
        for _, value in _leaves(_at(tree, path), ""):
            total += len(str(value)) if isinstance(value, str) else 1
            if isinstance(value, str) and "${" in value:
                total += sum(_size(tree, target, sizes) for target in _targets(tree, path, value))
        sizes[path] = total
    return sizes[path]


def _targets(tree: dict[str, Any], path: str, text: str) -> Iterator[str]:
    """Every name in a text with references that is a key of the tree, also one relative to its place (`${.name}`)."""
    for word in _NAME.findall(text):
        name = word
        if word.startswith("."):
            up = len(word) - len(word.lstrip("."))
            above = re.sub(r"\[\d+\]", "", path).split(".")[:-up]
            name = ".".join([*above, word.lstrip(".")])
        if name and name != path and _at(tree, name) is not None:
            yield name


def _at(tree: object, path: str) -> object:
    node = tree
    for name in path.replace("[", ".").replace("]", "").split("."):
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node
