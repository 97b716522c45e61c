"""A new recipe as a renamed copy of one that is there: its Python file and its YAML together."""

from __future__ import annotations

import ast
import contextlib
import keyword
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from runner import paths
from runner.config.catalogue import families, option_files, recipe_settings
from runner.errors import Problem, RequestError, nearest

LONGEST_NAME = 100  # of a recipe; file systems take 255 bytes, with endings and what is put in front


@dataclass(frozen=True)
class Template:
    """A recipe to copy: its name, its two files, and the model family it trains."""

    name: str
    code: Path
    settings: Path
    family: str


def template(name: str) -> Template:
    """The recipe `name` of ours or of the current folder.

    Raises:
        RequestError: when there is no such recipe, or its Python file is missing.
    """
    known = option_files("recipe")
    if name not in known:
        near = nearest(name, known, cutoff=0.4)
        raise RequestError(
            Problem(
                f"--from {name}",
                None,
                f"there is no such recipe; there are {', '.join(sorted(known))}",
                f"use --from {near}" if near else "",
            )
        )
    settings = recipe_settings(name)
    file = str(settings.get("file") or "")
    code = next((folder / file for folder in paths.recipe_dirs() if (folder / file).is_file()), None)
    if not file or code is None:
        raise RequestError(
            Problem(
                "recipe.file",
                file,
                f"{known[name]} names this file, but it is not to be found",
                "fix recipe.file there",
            )
        )
    return Template(name, code, known[name], (families(settings) or ["encoder"])[0])


def name_problems(name: str, root: Path) -> list[Problem]:
    """Why a new recipe in `root` cannot have this name."""
    if not _usable(name):
        better = re.sub(r"\W+", "_", name.strip()).strip("_").lower()
        better = better if _usable(better) else "my_task"
        rule = (
            "a recipe's name must be a Python identifier: letters, digits and _, a letter first, no keyword, at "
            f"most {LONGEST_NAME} characters"
        )
        return [Problem(f"new {name}", None, rule, f"for example {better}")]
    if name in option_files("recipe"):
        return [
            Problem(
                f"new {name}",
                None,
                f"there is a recipe of this name: {option_files('recipe')[name]}",
                "choose another name",
            )
        ]
    taken = [folder / f"{name}.py" for folder in paths.recipe_dirs() if (folder / f"{name}.py").exists()]
    taken += [path for path in targets(name, root) if path.exists()]
    return (
        [Problem(f"new {name}", None, f"{taken[0]} exists, and nothing is overwritten", "choose another name")]
        if taken
        else []
    )


def _usable(name: str) -> bool:
    return (
        len(name) <= LONGEST_NAME
        and name.isidentifier()
        and name.isascii()
        and name[0].isalpha()
        and not keyword.iskeyword(name)
    )


def targets(name: str, root: Path) -> tuple[Path, Path]:
    """The Python file and the YAML of a recipe in `root`."""
    return root / "recipes" / f"{name}.py", root / "conf" / "recipe" / f"{name}.yaml"


def create(name: str, source: Template, root: Path) -> tuple[Path, Path]:
    """Write the copy under `root`; returns its two files.

    Raises:
        RequestError: for a name that cannot be taken, or a folder that cannot be written.
    """
    problems = name_problems(name, root)
    if problems:
        raise RequestError(problems)
    code, settings = targets(name, root)
    texts = {
        path: renamed(original.read_text(encoding="utf-8"), source, name, code=path == code)
        for path, original in ((code, source.code), (settings, source.settings))
    }
    with contextlib.ExitStack() as undo:  # both files or nothing
        try:
            for path, text in texts.items():
                _make_folder(path.parent, undo)
                _write_new(path, text)
                undo.callback(path.unlink)
        except OSError as error:
            raise RequestError(_unwritable(name, root, path, error)) from None
        undo.pop_all()
    return code, settings


def _make_folder(folder: Path, undo: contextlib.ExitStack) -> None:
    """Make a folder and its parents; those that were not there are removed by `undo`."""
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir()
            undo.callback(path.rmdir)


def _unwritable(name: str, root: Path, path: Path, error: OSError) -> Problem:
    if isinstance(error, FileExistsError) and path.exists():
        return Problem(f"new {name}", None, f"{path} exists, and nothing is overwritten", "choose another name")
    in_the_way = next((folder for folder in path.parents if folder.exists() and not folder.is_dir()), None)
    why = f"{in_the_way} is a file" if in_the_way else str(error.strerror)
    return Problem(f"--to {root}", None, f"the recipe cannot be written there ({why})", "use --to DIR")


def renamed(text: str, source: Template, name: str, code: bool) -> str:
    """A file of the template with recipe, file and class under the new name."""
    text = re.sub(rf"\b{re.escape(source.code.name)}\b", f"{name}.py", text)
    text = re.sub(rf"\b{re.escape(source.name)}\b", name, text)
    if code:
        text = re.sub(rf"\b{_recipe_class(text, source.code)}\b", class_name(name, text), text)
    return text


def class_name(name: str, text: str) -> str:
    """`my_task` → `MyTask`, or `MyTaskRecipe` where the file uses that name already."""
    plain = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    return f"{plain}Recipe" if re.search(rf"\b{plain}\b", text) else plain


def _recipe_class(text: str, path: Path) -> str:
    """Name of the one class at the top of the file that derives from Recipe."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).split(".")[-1] == "Recipe" for base in node.bases):
            return node.name
    raise RequestError(
        Problem(f"--from {path}", None, "this file defines no class that derives from Recipe", "copy another recipe")
    )


def _write_new(path: Path, text: str) -> None:
    """Write a file that must not exist; it appears whole or not at all."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", prefix=".new-", delete=False) as file:
        file.write(text)
    try:
        os.chmod(file.name, 0o644)
        os.link(file.name, path)  # unlike a rename it fails where the file exists
    finally:
        os.unlink(file.name)
