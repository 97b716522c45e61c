"""Local files that a request names: they travel to executors that do not have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import paths
from runner.config.schema import RunConfig
from runner.data.source import split_paths
from runner.recipe import recipe_path

INPUTS = "inputs"  # folder beside the rendered files


@dataclass(frozen=True)
class Input:
    """The files behind one key.

    Attributes:
        folder: what the key names, where that is a folder; None where it names files.
    """

    key: str
    files: list[Path]
    folder: Path | None = None

    def names(self) -> dict[Path, str]:
        """File → its name below INPUTS; files of the same name stay apart."""
        if self.folder is not None:
            return {path: f"{self.key}/{path.relative_to(self.folder)}" for path in self.files}
        if self.key == "recipe.file":  # modules beside it are imported by their names
            return {path: f"{self.key}/{path.name}" for path in self.files}
        return {path: f"{self.key}/{number}/{path.name}" for number, path in enumerate(self.files)}

    def sizes(self) -> list[tuple[str, int]]:
        """Path and bytes of each file, by which an executor knows whether it has them."""
        return [(str(path.absolute()), path.stat().st_size) for path in self.files]


def inputs_of(config: RunConfig) -> list[Input]:
    """Everything local that the request names; what comes with the runner is on every machine that has it."""
    found = []
    for split in ("train", "validation", "test"):
        if config.dataset.source == "files" and getattr(config.dataset, split) is not None:
            found.append(Input(f"dataset.{split}", split_paths(config.dataset, split)))
    recipe = recipe_path(config.recipe.file)
    if recipe.parent != paths.recipe_dirs()[-1].resolve():  # the runner's own
        beside = sorted(path for path in recipe.parent.glob("*.py") if path != recipe)
        found.append(Input("recipe.file", [recipe, *beside]))
    for key, value in (("model.path", config.model.path), ("model.tokenizer", config.model.tokenizer)):
        folder = Path(value).expanduser() if value else None
        if folder is not None and folder.is_dir():
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            found.append(Input(key, files, folder))
    return found


def lacking(told: Mapping[str, list[tuple[str, int]]]) -> list[str]:
    """On an executor: the keys whose files are not here."""

    def here(path: str, size: int) -> bool:
        return Path(path).is_file() and Path(path).stat().st_size == size

    return [key for key, files in told.items() if not all(here(path, size) for path, size in files)]


def placed(config: RunConfig, told: Mapping[str, list[str]], folder: Path) -> RunConfig:
    """A copy of the configuration that names the files as they came.

    Args:
        told: key → names of its files below INPUTS, those that travelled.
        folder: where INPUTS is.
    """
    plain: dict[str, Any] = config.model_dump(mode="json")
    for key, names in told.items():
        section, _, name = key.partition(".")
        own = folder / INPUTS
        if section == "dataset":
            plain[section][name] = [str(own / file) for file in names]
        elif key == "recipe.file":
            plain[section][name] = str(own / names[0])
        else:
            plain[section][name] = str(own / key)
    return RunConfig.model_validate(plain)
