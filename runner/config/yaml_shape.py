"""Shapes of a YAML or JSON tree that nothing here could use: values that hold themselves, that grow by anchors, too
deep.
"""

from __future__ import annotations

MOST_VALUES = 100_000  # with every anchor written out; a configuration has some hundreds
MOST_LEVELS = 64


def shape_problem(content: object) -> str:
    """What is wrong with the shape of a tree, in words; empty where nothing is.

    Each node is counted once and remembered by identity: an anchor used ten times in ten places costs one visit.
    """
    sizes: dict[int, int] = {}
    above: set[int] = set()

    def size(node: object, level: int) -> int:
        if not isinstance(node, (dict, list)):
            return 1
        if id(node) in above:
            raise _Wrong("a value holds itself through its anchor (&NAME … *NAME)")
        if level > MOST_LEVELS:
            raise _Wrong(f"its values are nested more than {MOST_LEVELS} deep")
        if id(node) not in sizes:
            above.add(id(node))
            inside = node.values() if isinstance(node, dict) else node
            sizes[id(node)] = 1 + sum(size(item, level + 1) for item in inside)
            above.discard(id(node))
        if sizes[id(node)] > MOST_VALUES:
            raise _Wrong(f"with its anchors written out it holds more than {MOST_VALUES:,} values")
        return sizes[id(node)]

    try:
        size(content, 0)
    except _Wrong as wrong:
        return str(wrong)
    return ""


class _Wrong(Exception):
    """A shape that is refused; the message says why."""


def nesting(text: str) -> int:
    """Brackets and braces open at the deepest place of a text; those inside quotes count, too."""
    deepest = level = 0
    for letter in text:
        if letter in "[{(":
            level += 1
            deepest = max(deepest, level)
        elif letter in "]})":
            level -= 1
    return deepest
