"""What a user typed, made fit for Hydra: numbers as group choices, checked names, helpful quoting.

Hydra refuses an integer as a group choice, so `zero_stage=2` reaches it as `zero_stage='2'`. Keys and
options are checked here, before Hydra composes, so that each mistake gets one line with the nearest real name.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString, RangeSweep, Sweep
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from runner.compose.validation import key_names
from runner.config.yaml_shape import MOST_LEVELS, nesting
from runner.errors import Problem, RequestError, nearest
from runner.plain_text import escaped, is_utf8

_PARSER = OverridesParser.create()
# Keys that a group's choice sets, together with others: setting one alone would only change a label.
SET_BY_GROUP = {
    **{
        f"{group}.name": group
        for group in (
            "model",
            "dataset",
            "recipe",
            "precision",
            "optimizer",
            "scheduler",
            "offload",
            "launcher",
            "cluster",
            "adapter",
        )
    },
    "zero.stage": "zero_stage",
}
SEVERAL_OPTIONS = ("tracker",)  # groups from which more than one option may be chosen
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
# Options people look for that cannot be had, and why; versions measured against constraints.txt.
CONFLICTING = {
    "tracker": {
        "aim": "aim needs filelock<4 and cannot be installed beside this runner",
        "swanlab": "swanlab needs protobuf<7 and cannot be installed beside this runner",
    }
}
MOST_VALUES = 10_000
# Hydra's own keys that decide something here; its other ones has no effect.
HYDRA_KEYS = (
    "hydra.run.dir",
    "hydra.sweep.dir",
    "hydra.sweep.subdir",
    "hydra.searchpath",
    "hydra/sweeper",
    "hydra/launcher",
)
HYDRA_SECTIONS = ("hydra.sweeper.", "hydra.launcher.", "hydra.job.")
_KEY = re.compile(r"^(?P<sign>~|\+\+?)?(?P<key>[A-Za-z_][\w./@:-]*)=(?P<value>.*)$", re.DOTALL)


def parse_overrides(arguments: list[str]) -> list[Override]:
    """Parse what was typed; every argument that is no override is collected into one error.

    Raises:
        RequestError: see `readable_overrides`.
    """
    parsed, problems = readable_overrides(arguments)
    if problems:
        raise RequestError(problems)
    return parsed


def readable_overrides(arguments: list[str]) -> tuple[list[Override], list[Problem]]:
    """The overrides that can be read, and a problem for each that cannot, with the exact form to type instead."""
    parsed, problems = [], []
    for argument in arguments:
        try:
            check_text(argument)
            override = _PARSER.parse_override(argument)
        except HydraException:
            problems.append(_unreadable(argument))
            continue
        except _Unusable as error:
            key, _, value = argument.partition("=")
            problems.append(Problem(escaped(key), escaped(value), str(error), error.fix))
            continue
        wrong = _wrong_range(override) or _broken_reference(override)
        if wrong is None:
            parsed.append(override)
        else:
            problems.append(wrong)
    return parsed, problems


class _Unusable(Exception):
    """An argument that is not given to Hydra; the message says why."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.fix = fix


def check_text(argument: str) -> None:
    """Refuse what no file of a run could hold, and what Hydra's parser would die of.

    Raises:
        _Unusable: bytes that are not UTF-8, or brackets too deep.
    """
    if not is_utf8(argument):
        raise _Unusable("this holds bytes that are not UTF-8, which no configuration can hold", "rename it in UTF-8")
    if nesting(argument) > MOST_LEVELS:
        raise _Unusable(f"this is nested more than {MOST_LEVELS} deep", "put it into a file that the recipe reads")


def _unreadable(argument: str) -> Problem:
    """Say how an argument must be typed so that the shell and Hydra's grammar both let it through."""
    match = _KEY.match(argument)
    if match is None:
        return Problem(argument, None, "this is no override of the form key=value", "see `python -m runner --help`")
    if not _can_be_read(f"{match['key']}=1"):
        near = nearest(re.sub(r"\W+", ".", match["key"]).strip("."), key_names())
        fix = f"did you mean {near}={match['value']}?" if near else "`python -m runner keys` lists every key"
        return Problem(
            match["key"],
            match["value"],
            "this is no name of a key: names are letters, digits and _, with single dots between them",
            fix,
        )
    if "${" in match["value"]:
        return _unreadable_reference(match["key"], match["value"])
    return Problem(
        match["key"],
        match["value"],
        "these characters need quotes of their own",
        f"type {shlex.quote(argument[: match.start('value')] + quoted(match['value']))}",
    )


def _can_be_read(argument: str) -> bool:
    try:
        _PARSER.parse_override(argument)
    except HydraException:
        return False
    return True


def _broken_reference(override: Override) -> Problem | None:
    """A text whose `${` opens no reference: Hydra lets it through, and composing would die of it."""
    for choice in choices(override):
        try:
            OmegaConf.create({"value": choice})
        except GrammarParseError:
            return _unreadable_reference(override.key_or_group, str(choice))
        except OmegaConfBaseException:
            continue  # anything else about the value is reported where the value is checked
    return None


def _unreadable_reference(key: str, value: str) -> Problem:
    as_text = quoted(value).replace("${", "\\${")
    return Problem(
        key,
        value,
        "this reference cannot be read",
        f"write ${{KEY}}, or for the text itself {shlex.quote(f'{key}={as_text}')}",
    )


def _wrong_range(override: Override) -> Problem | None:
    """A range without values, or with more than anyone would wait for."""
    sweep = override.value()
    if not isinstance(sweep, RangeSweep):
        return None
    key, _, value = (override.input_line or "").partition("=")
    start, stop, step = (float(part) for part in (sweep.start or 0, sweep.stop or 0, sweep.step))
    count = (stop - start) / step if step else 0.0
    if count > 0 and count <= MOST_VALUES:
        return None
    if not step:
        why = "the step of a range cannot be 0"
    elif math.isfinite(count) and count <= 0:
        why = "this range is empty: it ends before its second number"
    else:
        why = f"this range has more than {MOST_VALUES} values"
    return Problem(key, value, why, f"for example {key}=range(1,4) for 1, 2 and 3")


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


def options_of(override: Override) -> list[object]:
    """The single options that a group's override names: a list of several, where the group takes them, one by one."""
    found = choices(override)
    if override.key_or_group not in SEVERAL_OPTIONS:
        return found
    return [_plain(item) for choice in found for item in (choice if isinstance(choice, list) and choice else [choice])]


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


def check_names(
    overrides: list[Override], groups: dict[str, list[str]], is_key: Callable[[str], bool], keys: list[str]
) -> list[Problem]:
    """Problems of names only: unknown keys, unknown options, a group replaced by a value.

    Args:
        groups: options by group.
        is_key: whether a dotted name is a key a run may set.
        keys: all such names, for suggestions.
    """
    return _two_ways_to_say_one_thing(overrides) + [
        problem for override in overrides for problem in name_problems(override, groups, is_key, keys)
    ]


def name_problems(
    override: Override, groups: dict[str, list[str]], is_key: Callable[[str], bool], keys: list[str]
) -> list[Problem]:
    """As `check_names`, of one override alone."""
    name = override.key_or_group
    value = (override.input_line or "").partition("=")[2]
    if override.is_delete():
        return [
            Problem(
                override.input_line or name,
                None,
                "nothing can be taken out of a run",
                f"use {name}=null for a key, {name}=OPTION for a group",
            )
        ]
    if name in ADDED_GROUPS and not override.is_add() and not override.is_force_add():
        return [Problem(name, value, "this group is not part of every run", f"type +{override.input_line}")]
    if name in groups:
        return _wrong_options(override, groups[name])
    if name in SET_BY_GROUP:
        return [_group_as_key(override)]
    if name == "hydra" or name.startswith(("hydra.", "hydra/")):
        return [] if name in HYDRA_KEYS or name.startswith(HYDRA_SECTIONS) else [_unknown_hydra_key(override)]
    return [] if is_key(name) else [_unknown_key(override, groups, keys)]


def _two_ways_to_say_one_thing(overrides: list[Override]) -> list[Problem]:
    """`+method=` chooses launcher and ZeRO stage; typing one of these as well would silently win over it."""
    typed = {override.key_or_group: override.input_line or "" for override in overrides}
    if "method" not in typed:
        return []
    twins = [name for name in ("launcher", "zero_stage") if name in typed]
    return [
        Problem(
            name,
            typed[name].partition("=")[2],
            f"{typed['method']} chooses it too",
            f"leave one of them out: {typed[name]} or {typed['method']}",
        )
        for name in twins
    ]


def _wrong_options(override: Override, options: list[str]) -> list[Problem]:
    group, problems = override.key_or_group, []
    typed = f"+{group}" if group in ADDED_GROUPS else group
    for choice in options_of(override):
        name = str(choice)
        if choice is None or isinstance(choice, (list, dict)):
            value = (override.input_line or "").partition("=")[2]
            several = ",".join(map(str, choice)) if isinstance(choice, list) and len(choice) > 1 else "A,B"
            why = f"one option is chosen from a group; {group} has {', '.join(options) or 'none yet'}"
            problems.append(Problem(group, value, why, f"use {typed}=OPTION, or -m {typed}={several} for one run each"))
        elif name not in options and name in CONFLICTING.get(group, {}):
            problems.append(Problem(group, name, CONFLICTING[group][name], f"use one of {', '.join(options)}"))
        elif name not in options:
            near = nearest(name, options, cutoff=0.4)
            problems.append(
                Problem(
                    group,
                    name,
                    f"there is no such option; {group} has {', '.join(options) or 'none yet'}",
                    f"use {typed}={near}" if near else "",
                )
            )
    return problems


def _unknown_hydra_key(override: Override) -> Problem:
    key, _, value = (override.input_line or "").partition("=")
    near = nearest(override.key_or_group, HYDRA_KEYS, cutoff=0.75)
    fix = (
        f"did you mean {near}={value}?"
        if near
        else f"Hydra's keys with a say here are {', '.join(HYDRA_KEYS)} and those of hydra.sweeper"
    )
    return Problem(key, value, "no part of the runner reads this key", fix)


def _section(override: Override, keys: list[str]) -> Problem:
    name, value = override.key_or_group, (override.input_line or "").partition("=")[2]
    inside = [key.removeprefix(f"{name}.") for key in keys if key.startswith(f"{name}.")]
    return Problem(
        name,
        value,
        "this is a section with keys of its own, not a value",
        f"set one of them: {name}.{inside[0]}=…, {', '.join(inside[1:6])}, …",
    )


def _group_as_key(override: Override) -> Problem:
    key, _, value = (override.input_line or "").partition("=")
    group = SET_BY_GROUP[override.key_or_group]
    return Problem(key, value, f"this follows from the choice of the group {group}", f"use {group}={value}")


def _unknown_key(override: Override, groups: dict[str, list[str]], keys: list[str]) -> Problem:
    name = override.key_or_group
    leaf = name.rsplit(".", 1)[-1]
    alias = nearest(leaf, ALIASES, cutoff=0.85)
    near = ALIASES[alias] if alias else nearest(name, [*keys, *groups], cutoff=0.75)
    if not near:
        leaves = {key.rsplit(".", 1)[-1]: key for key in keys}
        found = nearest(leaf, leaves, cutoff=0.75)
        near = leaves[found] if found else None
    if any(key.startswith(f"{name}.") for key in keys):
        return _section(override, keys)
    value = (override.input_line or "").partition("=")[2]
    fix = f"did you mean {near}={value}?" if near else "`python -m runner keys` lists every key"
    if near in groups:
        fix += f" ({near} has {', '.join(groups[near])})"
    return Problem((override.input_line or name).partition("=")[0], value, "no part of the runner reads this key", fix)
