"""Tab completion: a script for a shell, with verbs, keys and their values inside; options are looked up at each press.

Nothing of Python runs when Tab is pressed: options are the files in the groups' folders, the runner's and `./conf`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Union, get_args, get_origin

SHELLS = ("bash", "zsh", "fish")
# Flags of the verbs that parse them themselves; all have --help.
FLAGS = {
    "run": ["-m", "--multirun", "--help", "--version"],
    "new": ["--from"],
    "estimate": ["--device-memory"],
    "report": ["--format", "--output"],
    "eject": ["--to"],
    "push": ["--to", "--public", "--dry-run"],
}
TAKES_FOLDERS = ("report", "resume", "track", "watch", "eject", "push", "export", "merge", "predict", "status", "stop")


def script(shell: str, verbs: Mapping[str, str]) -> str:
    """The completion script of a shell.

    Args:
        shell: one of SHELLS.
        verbs: verb → what it does.
    """
    from runner.compose.app import group_options
    from runner.compose.overrides import ADDED_GROUPS
    from runner.compose.validation import field_of, key_names
    from runner.paths import conf_dir

    keys = key_names()
    groups = [f"+{name}=" if name in ADDED_GROUPS else f"{name}=" for name in group_options()]
    sections = sorted({f"{key.rpartition('.')[0]}." for key in keys if "." in key})
    fields = {key: field for key in keys if (field := field_of(key)) is not None}
    values = {key: found for key, field in fields.items() if (found := _values(field.annotation))}
    replaced = {
        "@CONF@": _quoted(str(conf_dir())),
        "@VERBS@": " ".join(verbs),
        "@FIRST@": " ".join([*groups, *sections, *(f"{key}=" for key in keys if "." not in key)]),
        "@KEYS@": " ".join(f"{key}=" for key in keys if "." in key),
        "@FOLDER_VERBS@": _words(shell, TAKES_FOLDERS),
        "@FLAGS@": "\n".join(_case(shell, verb, [*flags, "--help"]) for verb, flags in FLAGS.items() if verb in verbs),
        "@VALUES@": "\n".join(_case(shell, key, found) for key, found in values.items()),
    }
    text = (Path(__file__).parent / f"completion.{shell}").read_text(encoding="utf-8")
    for mark, value in replaced.items():
        text = text.replace(mark, value)
    return text


def _values(annotation: object) -> list[str]:
    """What may stand behind a key whose type names its values; [] for free ones."""
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    if get_origin(annotation) in (Union, types.UnionType):
        return [value for member in get_args(annotation) for value in _values(member)]
    return []


def _words(shell: str, names: tuple[str, ...]) -> str:
    """Alternatives of a `case` in the shell's own words."""
    return (" " if shell == "fish" else "|").join(names)


def _case(shell: str, name: str, found: list[str]) -> str:
    """One branch of a `case` that prints words."""
    words = " ".join(dict.fromkeys(found))
    return f"    case {name}\n      echo {words}" if shell == "fish" else f"    {name}) echo {words} ;;"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
