"""What a user typed, made fit for Hydra: numbers as group choices, checked names, helpful quoting.

Hydra refuses an integer as a group choice, so `zero_stage=2` reaches it as `zero_stage='2'`. Keys and
options are checked here, before Hydra composes, so that each mistake gets one line with the nearest real name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from difflib import get_close_matches

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString, RangeSweep, Sweep
from hydra.errors import HydraException

from runner.errors import Problem, RequestError

_PARSER = OverridesParser.create()
# Keys that a group's choice sets, together with others: setting one alone would only change a label.
SET_BY_GROUP = {
    **{f"{group}.name": group for group in ("model", "dataset", "recipe", "precision", "optimizer", "scheduler", "offload", "launcher")},
    "zero.stage": "zero_stage",
}
ADDED_GROUPS = ("method", "sweep", "fitted")  # groups outside the defaults list
# What people call a key elsewhere → its name here.
ALIASES = {
    "learning_rate": "optimizer.lr",
    "lr": "optimizer.lr",
    "batch_size": "train.micro_batch_size",
    "per_device_train_batch_size": "train.micro_batch_size",
    "per_device_eval_batch_size": "train.eval_micro_batch_size",
    "num_train_epochs": "train.epochs",
    "accumulation": "train.gradient_accumulation_steps",
    "global_batch": "train.global_batch_size",
    "max_grad_norm": "train.gradient_clipping",
    "num_warmup_steps": "scheduler.warmup_steps",
    "mixed_precision": "precision",
    "deepspeed_config_file": "launcher.config_file",
    "max_seq_length": "task.max_length",
    "max_length": "task.max_length",
}
_KEY = re.compile(r"^(?P<sign>~|\+\+?)?(?P<key>[A-Za-z_][\w./@:-]*)=(?P<value>.*)$", re.DOTALL)


def parse_overrides(arguments: list[str]) -> list[Override]:
    """Parse what was typed; every argument that is no override is collected into one error.

    Raises:
        RequestError: with the exact, quoted form of each argument that Hydra's grammar cannot read.
    """
    parsed, problems = [], []
    for argument in arguments:
        try:
            parsed.append(_PARSER.parse_override(argument))
        except HydraException:
            problems.append(_unreadable(argument))
    if problems:
        raise RequestError(problems)
    return parsed


def _unreadable(argument: str) -> Problem:
    """Say how an argument must be typed so that the shell and Hydra's grammar both let it through."""
    match = _KEY.match(argument)
    if match is None:
        return Problem(argument, None, "this is no override of the form key=value", "see `python -m runner --help`")
    return Problem(
        match["key"],
        match["value"],
        "these characters need quotes of their own",
        f"type {shlex.quote(argument[: match.start('value')] + quoted(match['value']))}",
    )


def quoted(value: str) -> str:
    """The value in double quotes, as Hydra's grammar reads it back unchanged."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def is_sweep(override: Override) -> bool:
    """Whether the override names several values."""
    return override.is_sweep_override()


def choices(override: Override) -> list[object]:
    """The single values an override names, sweeps expanded where they are finite."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return [_plain(item) for item in value.list]
    if isinstance(value, RangeSweep):
        return [int(item) for item in value.range()] if _whole_range(value) else []
    return [] if isinstance(value, Sweep) else [_plain(value)]


def _plain(item: object) -> object:
    return item.text if isinstance(item, QuotedString) else item


def _whole_range(sweep: RangeSweep) -> bool:
    return all(part is None or float(part).is_integer() for part in (sweep.start, sweep.stop, sweep.step))


def group_choices_as_text(override: Override, groups: set[str]) -> str:
    """The override for Hydra: where it chooses from a group by number, the number in quotes."""
    key = override.key_or_group
    if key not in groups or not any(isinstance(choice, (int, float)) for choice in choices(override)):
        return override.input_line or ""
    texts = ",".join(f"'{choice}'" for choice in choices(override))
    sign = {"ADD": "+", "FORCE_ADD": "++"}.get(override.type.name, "")
    return f"{sign}{override.get_key_element().lstrip('+')}={texts}"


def check_names(overrides: list[Override], groups: dict[str, list[str]], is_key: Callable[[str], bool], keys: list[str]) -> list[Problem]:
    """Problems of names only: unknown keys, unknown options, a group replaced by a value.

    Args:
        groups: options by group.
        is_key: whether a dotted name is a key a run may set.
        keys: all such names, for suggestions.
    """
    problems = _two_ways_to_say_one_thing(overrides)
    for override in overrides:
        name = override.key_or_group
        if override.is_delete():
            problems.append(Problem(override.input_line or name, None, "nothing can be taken out of a run", f"use {name}=null for a key, {name}=OPTION for a group"))
        elif name in ADDED_GROUPS and not override.is_add() and not override.is_force_add():
            problems.append(Problem(name, (override.input_line or "").partition("=")[2], "this group is not part of every run", f"type +{override.input_line}"))
        elif name in groups:
            problems += _unknown_options(override, groups[name])
        elif name in SET_BY_GROUP:
            problems.append(_group_as_key(override))
        elif not (name.startswith("hydra") or is_key(name)):
            problems.append(_unknown_key(override, groups, keys))
    return problems


def _two_ways_to_say_one_thing(overrides: list[Override]) -> list[Problem]:
    """`+method=` chooses launcher and ZeRO stage; typing one of these as well would silently win over it."""
    typed = {override.key_or_group: override.input_line or "" for override in overrides}
    if "method" not in typed:
        return []
    twins = [name for name in ("launcher", "zero_stage") if name in typed]
    return [Problem(name, typed[name].partition("=")[2], f"{typed['method']} chooses it too", f"leave one of them out: {typed[name]} or {typed['method']}") for name in twins]


def _unknown_options(override: Override, options: list[str]) -> list[Problem]:
    group, problems = override.key_or_group, []
    for choice in choices(override):
        names = [str(item) for item in choice] if isinstance(choice, list) else [str(choice)]
        for name in names:
            if name not in options:
                near = get_close_matches(name, options, n=1, cutoff=0.4)
                problems.append(Problem(group, name, f"there is no such option; {group} has {', '.join(options) or 'none yet'}", f"use {group}={near[0]}" if near else ""))
    return problems


def _section(override: Override, keys: list[str]) -> Problem:
    name, _, value = (override.input_line or "").partition("=")
    inside = [key.removeprefix(f"{name}.") for key in keys if key.startswith(f"{name}.")]
    return Problem(name, value, "this is a section with keys of its own, not a value", f"set one of them: {name}.{inside[0]}=…, {', '.join(inside[1:6])}, …")


def _group_as_key(override: Override) -> Problem:
    key, _, value = (override.input_line or "").partition("=")
    group = SET_BY_GROUP[override.key_or_group]
    return Problem(key, value, f"this follows from the choice of the group {group}", f"use {group}={value}")


def _unknown_key(override: Override, groups: dict[str, list[str]], keys: list[str]) -> Problem:
    name = override.key_or_group
    leaf = name.rsplit(".", 1)[-1]
    alias = get_close_matches(leaf, ALIASES, n=1, cutoff=0.85)
    near = [ALIASES[alias[0]]] if alias else get_close_matches(name, [*keys, *groups], n=1, cutoff=0.75)
    if not near:
        leaves = {key.rsplit(".", 1)[-1]: key for key in keys}
        near = [leaves[match] for match in get_close_matches(leaf, leaves, n=1, cutoff=0.75)]
    if any(key.startswith(f"{name}.") for key in keys):
        return _section(override, keys)
    value = (override.input_line or "").partition("=")[2]
    mend = f"did you mean {near[0]}={value}?" if near else "`python -m runner keys` lists every key"
    if near and near[0] in groups:
        mend += f" ({near[0]} has {', '.join(groups[near[0]])})"
    return Problem((override.input_line or name).partition("=")[0], value, "no part of the runner reads this key", mend)
