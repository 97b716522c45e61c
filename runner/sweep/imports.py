"""Which modules of this package a module imports, found in the source text: nothing is imported for it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def module_files(modules: Iterable[str]) -> dict[str, Path]:
    """The modules and all that they import from this package, directly or through others, also inside functions.

    What is looked up by a name made at run time (an engine's module) is not seen: name it among `modules`.

    Returns:
        Module name → its file. Packages on the way are part of it, as Python runs their `__init__.py`; the
        root, which offers the whole package by name, is not.
    """
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = None if name in found else file_of(name)
        if path is not None:
            found[name] = path
            parent = name.rpartition(".")[0]
            waiting += [*imported(path), *([parent] if parent != PACKAGE.name else [])]
    return found


def file_of(module: str) -> Path | None:
    """The file of a module of this package; None where there is none, as for a function or another package."""
    package, *parts = module.split(".")
    if package != PACKAGE.name or not parts:
        return None
    folder = PACKAGE.joinpath(*parts)
    return next((path for path in (folder.with_suffix(".py"), folder / "__init__.py") if path.is_file()), None)


def imported(path: Path) -> Iterator[str]:
    """Names that a file imports, at its top or inside functions; not those under `if TYPE_CHECKING`.

    Of `from a import b` both `a` and `a.b`: which of them is a module, `file_of` knows.
    """
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        waiting += ast.iter_child_nodes(node)
