"""A run folder as input: it may have been damaged, edited, or made by somebody else. One schema, one reader, one
rule on code.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner import paths
from runner.config.schema import RunConfig
from runner.config.yaml_shape import shape_problem
from runner.errors import Problem, RequestError
from runner.recipe import recipe_path
from runner.record_format import SCHEMA_VERSION
from runner.regular_files import read_regular
from runner.rundir.record import FILE

TRUST = "--trust-code"
LARGEST_RECORD = 500_000_000  # bytes


class _Loose(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class AttemptShape(_Loose):
    """One start or resume."""

    status: str
    started_at: str
    wall_seconds: float | None = None


class RunnerShape(_Loose):
    """The process that writes the record."""

    pid: int | None = None
    create_time: float | None = None
    host: str | None = None
    boot_id: str | None = None
    started_monotonic: float | None = None


class RecordShape(_Loose):
    """The keys of a record that a resume reads, and their kinds."""

    schema_version: int
    status: Literal["running", "completed", "failed", "preempted"]
    attempts: list[AttemptShape] = Field(min_length=1)
    runner: RunnerShape = RunnerShape()
    phases: dict[str, float | None] = {}
    data: dict[str, dict[str, Any]] = {}
    epochs: list[dict[str, Any]] = []
    artifacts: dict[str, str] = {}
    optimizer_steps: int = 0
    planned_optimizer_steps: int | None = None
    recipe: dict[str, str] | None = None


def checked_record(run_dir: Path) -> dict[str, Any]:
    """The record of a run that is to be resumed.

    Raises:
        RequestError: naming the file and the key that is not as it was written.
    """
    content = _json_object(run_dir, FILE)
    version = content.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        why = f"its {FILE} has schema version {version}, this runner knows {SCHEMA_VERSION}"
        raise RequestError(Problem("RUN_DIR", run_dir, why, "resume it with the runner that wrote it"))
    try:
        RecordShape.model_validate(content)
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(map(str, item["loc"]))
        raise _refused(run_dir, f"its {FILE} is damaged at {key} ({item['msg'][0].lower()}{item['msg'][1:]})") from None
    return content


def _json_object(run_dir: Path, name: str, optional: bool = False) -> dict[str, Any]:
    """A JSON file of the folder that holds an object of the nesting that the runner writes.

    Args:
        optional: where there is no such file, it says nothing.
    """
    try:
        content = json.loads(read_regular(run_dir / name))
    except OSError as error:
        if optional and isinstance(error, FileNotFoundError):
            return {}
        raise _refused(run_dir, f"its {name} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise _refused(run_dir, f"its {name} is no JSON ({str(error)[:100]})") from None
    if not isinstance(content, dict) or shape_problem(content):
        raise _refused(run_dir, f"its {name} {shape_problem(content) or 'holds no JSON object'}")
    return content


def _refused(run_dir: Path, why: str) -> RequestError:
    return RequestError(Problem("RUN_DIR", run_dir, why, "start a new run"))


def rendered_json(run_dir: Path, name: str) -> None:
    """Check a rendered JSON file that a resume reads again; one that is not there is not needed.

    Raises:
        RequestError: for what is no JSON object, or holds a value where a block was written.
    """
    content = _json_object(run_dir, name, optional=True)
    zero = content.get("zero_optimization", {})
    blocks = [("zero_optimization", zero)]
    if isinstance(zero, dict):
        blocks += [(f"zero_optimization.{key}", zero.get(key, {})) for key in ("offload_optimizer", "offload_param")]
    wrong = [key for key, block in blocks if not isinstance(block, dict)]
    if wrong:
        raise _refused(run_dir, f"its {name} is damaged at {wrong[0]} (input should be a block of keys)")


def recipe_facts(config: RunConfig) -> dict[str, str]:
    """Path and hash of the recipe's file, for the record."""
    path = recipe_path(config.recipe.file)
    return {"file": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def check_code(run_dir: Path, record: dict[str, Any], config: RunConfig, trusted: bool) -> None:
    """Refuse code that the folder names: a recipe elsewhere than the runner's or ./recipes, one that has changed
    since the run
    began, and code that comes with a model.

    Args:
        trusted: whether the user said that it may run (`--trust-code`).

    Raises:
        RequestError: with the flag.
    """
    if trusted:
        return
    fix = f"look at it, and if it may run type python -m runner resume '{run_dir}' {TRUST}"
    path = recipe_path(config.recipe.file)
    homes = [folder.resolve() for folder in paths.recipe_dirs()]
    if not any(path.is_relative_to(home) for home in homes):
        why = "the run folder names Python code outside ./recipes and the runner's own recipes"
        raise RequestError(Problem("recipe.file", path, why, fix))
    known = (record.get("recipe") or {}).get("sha256")
    if known is not None and hashlib.sha256(path.read_bytes()).hexdigest() != known:
        raise RequestError(Problem("recipe.file", path, "this recipe has changed since the run began", fix))
    if config.model.trust_remote_code:
        why = "the run folder asks to execute Python code that comes with the model"
        raise RequestError(Problem("model.trust_remote_code", True, why, fix))
