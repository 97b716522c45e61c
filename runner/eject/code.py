"""The recipe's own code and as much of the runner as it uses, as files that need no runner.

What a recipe imports of the runner is followed from module to module and copied; `runner.recipe`, the base class, is
replaced by its part that the hooks need.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from pathlib import Path

from runner import __version__, recipe
from runner.errors import Problem, RequestError

SUPPORT = "support"  # the package that takes the runner's place
RECIPE_FILE = "recipe.py"
_REPLACED = "runner.recipe"
_LEFT_OUT = ("length_problems",)  # methods of the base that only the checks before a run call
# Rooms of the runner that no task needs: a recipe that imports them belongs to the runner.
_NOT_FOR_TASKS = ("runner.cli", "runner.compose", "runner.config", "runner.engines", "runner.launch", "runner.train")
_BASE_HEAD = '''"""The base class of the recipe: its hooks, without the runner's checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

Batch = dict[str, "torch.Tensor"]


class Section(dict[str, Any]):
    """A section of config.json, whose keys are also attributes."""

    __getattr__ = dict.__getitem__


class Options(BaseModel):
    """Base of the recipe's own keys."""

    model_config = ConfigDict(extra="forbid")


'''


def vendored(recipe_file: Path) -> dict[str, str]:
    """The recipe and the modules behind it, by path in the folder.

    Raises:
        RequestError: where the recipe uses parts of the runner that cannot be taken along.
    """
    files = {RECIPE_FILE: _rewritten(recipe_file.read_text(encoding="utf-8"))}
    files[f"{SUPPORT}/__init__.py"] = (
        f'"""Parts of finetune-runner {__version__} that the recipe uses."""\n\n__version__ = "{__version__}"\n'
    )
    files[f"{SUPPORT}/recipe.py"] = base_class()
    waiting, seen = list(_imported(recipe_file)), set()
    while waiting:
        module = waiting.pop()
        if module in seen or module == _REPLACED:
            continue
        seen.add(module)
        if module.startswith(_NOT_FOR_TASKS):
            why = f"the recipe's code uses {module}, which works only inside the runner"
            raise RequestError(Problem("recipe.file", recipe_file, why, "move that use out of the recipe's hooks"))
        path = _file_of(module)
        target = f"{SUPPORT}/{module.removeprefix('runner.').replace('.', '/')}"
        package = path.name == "__init__.py"
        files[f"{target}/__init__.py" if package else f"{target}.py"] = _rewritten(path.read_text(encoding="utf-8"))
        for parent in _parents(module):
            files.setdefault(f"{SUPPORT}/{parent}/__init__.py", '"""A room of the runner."""\n')
        waiting += _imported(path)
    return files


def base_class() -> str:
    """`runner.recipe.Recipe` without what belongs to the runner, from its source."""
    source = inspect.getsource(recipe.Recipe)
    lines, tree = source.splitlines(), ast.parse(source)
    (class_node,) = tree.body
    assert isinstance(class_node, ast.ClassDef)
    for node in reversed(class_node.body):
        if isinstance(node, ast.FunctionDef) and node.name in _LEFT_OUT and node.end_lineno is not None:
            del lines[node.lineno - 1 : node.end_lineno + 1]
    text = "\n".join(lines).replace("config: RunConfig", "config: Section")
    text = text.replace("parse_options(type(self), config.task)", "type(self).Options(**config.task)")
    return f"{_BASE_HEAD}{text.rstrip()}\n"


def _imported(path: Path) -> set[str]:
    """Modules of the runner that a file imports when it runs; what only a type checker reads is left out."""
    found: set[str] = set()
    for node in _runtime_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.split(".")[0] == "runner"}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "runner":
            inside = {f"{node.module}.{name.name}" for name in node.names}
            modules = {name for name in inside if _is_module(name)}
            found |= modules | ({node.module} if len(modules) < len(inside) and node.module != "runner" else set())
    return found


def _runtime_nodes(tree: ast.AST) -> list[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING`."""
    nodes, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        nodes.append(node)
        waiting += ast.iter_child_nodes(node)
    return nodes


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _file_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None, "found when it was imported"
    assert spec.origin is not None, "found when it was imported"
    return Path(spec.origin)


def _parents(module: str) -> list[str]:
    parts = module.split(".")[1:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _rewritten(source: str) -> str:
    """Imports of the runner become imports of the package in its place."""
    return re.sub(r"^(\s*(?:from|import) )runner(?=[. ])", rf"\g<1>{SUPPORT}", source, flags=re.MULTILINE)
