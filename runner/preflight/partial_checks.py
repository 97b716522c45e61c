"""What else is wrong with a request in which something is wrong already: the checks that do not read the wrong part."""

from __future__ import annotations

from collections.abc import Iterable

from runner.compose import Composed
from runner.compose.overrides import SET_BY_GROUP
from runner.compose.validation import is_key
from runner.config.resolve import resolve_machine, resolve_owners
from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError
from runner.preflight.contradictions import contradictions, wrong_family
from runner.preflight.dataset import check_data
from runner.preflight.unused_keys import unused_keys
from runner.recipe import load_recipe

_SECTIONS_OF_GROUP = {
    "zero_stage": {"zero"},
    "launcher": {"launcher", "zero"},
    **{group: {group} for group in ("offload", "precision", "optimizer", "scheduler", "adapter")},
}
# What each check reads, besides what the contradictions say of themselves.
_DATA = {"dataset", "recipe", "task", "mode", "model", "cache_dir"}
_BATCH = {"launcher", "parallel", "train"}
_IDLE = {"launcher", "zero", "precision", "offload", "dataset", "model", "checkpoint", "mode"}
_OWNERS = {"launcher", "optimizer", "scheduler", "train", "dataset", "recipe", "task", "mode"}


def further_problems(rest: Composed, wrong: Iterable[str]) -> list[Problem]:
    """Errors of the run without its wrong keys, from checks that read none of the sections these are in.

    Args:
        wrong: keys and groups that were left out.
    """
    doubtful = _sections(wrong)
    if doubtful is None or rest.config.launcher.config_file is not None:  # a DeepSpeed JSON has a say in everything
        return []
    config, problems = resolve_machine(rest.config)
    found = problems if not doubtful & _BATCH else []
    if not doubtful & _IDLE:
        found += unused_keys(config, rest.explicit)
    if not doubtful & _DATA:
        found += _data(config)
    found += contradictions(config, None, doubtful)
    if not doubtful & _OWNERS:
        found += resolve_owners(config, total_steps_known=True)
    return [problem for problem in found if problem.severity == "error"]


def _data(config: RunConfig) -> list[Problem]:
    family = wrong_family(config)
    if family:
        return family
    try:
        return check_data(config, load_recipe(config))
    except RequestError as error:
        return error.problems


def _sections(wrong: Iterable[str]) -> set[str] | None:
    """The sections that a run with these keys right might have other values in; None: any of them."""
    found: set[str] = set()
    for key in (SET_BY_GROUP.get(name, name) for name in wrong):
        if key in _SECTIONS_OF_GROUP:
            found |= _SECTIONS_OF_GROUP[key]
        elif is_key(key):
            found.add(key.partition(".")[0])
        elif not key.startswith("hydra"):
            return None  # who knows what was meant
    return found
