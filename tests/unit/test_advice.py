"""Every override that a message of the runner advises names a key, a group or an option that exists (read from the source)."""  # noqa: E501

from __future__ import annotations

import ast
import re
from pathlib import Path

import runner
from runner.compose.app import group_options
from runner.compose.validation import is_key, key_names

OVERRIDE = re.compile(r"(?<![\w./{}])\+?([a-z][a-z_0-9]*(?:\.[a-z_0-9]+)*)=([\w.-]*)")
PLACEHOLDERS = re.compile(r"[A-Z][A-Z_]*|")


def advised() -> list[tuple[str, str, str]]:
    """File, key and value of each override in the text of a Problem; parts filled in at run time are left out."""
    found = []
    for path in sorted(Path(runner.__file__).parent.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Problem":
                for text in _texts(call):
                    found += [(path.name, key, value) for key, value in OVERRIDE.findall(text)]
    return found


def _texts(call: ast.Call) -> list[str]:
    inside = [node for argument in call.args[3:4] for node in ast.walk(argument)]
    return [node.value for node in inside if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_every_advised_override_exists() -> None:
    groups, sections = group_options(), {key.partition(".")[0] for key in key_names()}
    wrong = []
    for file, key, value in advised():
        known = is_key(key) or key.startswith(("hydra.", "task.")) or key in groups
        if not known and key.partition(".")[0] in {*sections, *groups}:
            wrong.append(f"{file}: {key}={value}")
        if key in groups and not PLACEHOLDERS.fullmatch(value) and value not in groups[key]:
            wrong.append(f"{file}: {key}={value}")
    assert len(advised()) > 40
    assert wrong == []
