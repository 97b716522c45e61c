"""Choices that exclude each other."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from runner import adapters, engines
from runner.config import plan
from runner.config.clusters import kind_of
from runner.config.schema import RunConfig
from runner.config.sequence_limits import architecture_facts, position_limit
from runner.data.source import named_files
from runner.errors import Problem
from runner.preflight.optimizers import optimizer_problems
from runner.recipe import Recipe

_BY_EVALUATION = ("evaluate_every_steps", "early_stopping_patience", "load_best_at_end")
Check = Callable[[RunConfig, Recipe | None], list[Problem]]
# What each check reads of the configuration, and the check.
CHECKS: tuple[tuple[set[str], Check], ...] = (
    ({"launcher"}, lambda config, _: _nodes(config)),
    (
        {"launcher", "parallel", "mode", "optimizer", "precision", *engines.sections()},
        lambda config, _: _engine(config) + engines.engine_of(config).missing_values(config),
    ),
    ({"model", "recipe", "task"}, lambda config, recipe: _positions(config, recipe) if recipe else []),
    (
        {"mode", "dataset", "recipe", "task", "train", "launcher", "scheduler"},
        lambda config, recipe: _schedule(config, recipe) if recipe else [],
    ),
    ({"model", "dataset", "recipe", "task"}, lambda config, recipe: _head(config, recipe) if recipe else []),
    ({"mode", "model"}, lambda config, _: _untrained(config)),
    ({"recipe", "task"}, lambda _, recipe: _judging_metric(recipe) if recipe else []),
    ({"mode", "dataset", "train"}, lambda config, _: _nothing_evaluated(config)),
    (
        {"mode", "model", "recipe", "launcher", "precision", *adapters.sections(), *engines.sections()},
        lambda config, recipe: adapters.adapter_of(config).problems(config, recipe) if recipe else [],
    ),
)


def contradictions(config: RunConfig, recipe: Recipe | None, doubtful: AbstractSet[str] = frozenset()) -> list[Problem]:
    """All pairs of choices that cannot hold together.

    Args:
        recipe: None where it is not known; checks that ask it are left out.
        doubtful: sections that must not be read, because something in them is wrong already.
    """
    return [problem for sections, check in CHECKS if not sections & doubtful for problem in check(config, recipe)]


def never_together(config: RunConfig, recipe: Recipe) -> list[Problem]:
    """Of these, the ones that hold on every machine; `auto` values need not be resolved."""
    return [*_engine(config), *_positions(config, recipe)]


def _engine(config: RunConfig) -> list[Problem]:
    """What the chosen engine cannot do, and choices of the others that it would ignore."""
    chosen = engines.engine_of(config)
    others = [engine for engine in engines.every_engine() if engine is not chosen]
    ignored = [problem for engine in others for problem in engine.problems_of_others(config)]
    return ignored + chosen.problems(config) + chosen.degree_problems(config) + optimizer_problems(config)


def _untrained(config: RunConfig) -> list[Problem]:
    if config.mode != "evaluate" or config.model.init != "random":
        return []
    fix = "for trained weights: model.path=RUN_DIR/model model.init=pretrained model.tokenizer=null"
    return [Problem("model.init", "random", "the weights that are evaluated are untrained", fix, "warning")]


def _nodes(config: RunConfig) -> list[Problem]:
    if config.launcher.num_nodes == 1 or kind_of(config).several_machines:
        return []
    return [
        Problem(
            "launcher.num_nodes",
            config.launcher.num_nodes,
            f"cluster={config.cluster.name} is one machine",
            "use launcher.num_nodes=1, cluster=nodes or cluster=slurm; python -m runner estimate takes any number",
        )
    ]


def wrong_family(config: RunConfig) -> list[Problem]:
    """A model that the recipe cannot train, with the recipes that can."""
    if config.model.family in config.recipe.families:
        return []
    from runner.config.catalogue import recipes_for

    fitting = recipes_for(config.model.family)
    fix = f"use {' or '.join(f'recipe={name}' for name in fitting)}" if fitting else "choose another model"
    return [
        Problem(
            "model",
            config.model.name,
            f"is of the family {config.model.family}; recipe={config.recipe.name} trains "
            f"{', '.join(config.recipe.families)}",
            fix,
        )
    ]


def _positions(config: RunConfig, recipe: Recipe) -> list[Problem]:
    limit = position_limit(architecture_facts(config.model))
    return recipe.length_problems(limit) if limit else []


def _schedule(config: RunConfig, recipe: Recipe) -> list[Problem]:
    rows = config.dataset.rows.get("train")
    if config.mode != "train" or not rows or not recipe.keeps_rows:
        return []
    total, every = plan.total_steps(rows, config), config.train.evaluate_every_steps
    problems = []
    if every is not None and every >= total:
        why = f"the run has only {total} optimizer steps and is evaluated after the last anyway"
        fix = f"use train.evaluate_every_steps={max(1, total // 4)}"
        problems.append(Problem("train.evaluate_every_steps", every, why, fix, "warning"))
    if plan.warmup_steps(config.scheduler, total) <= total:
        return problems
    return [
        *problems,
        Problem(
            "scheduler.warmup_steps",
            config.scheduler.warmup_steps,
            f"the run has only {total} optimizer steps, so the learning rate would never reach its peak",
            f"use scheduler.warmup_steps={total // 10}",
            "warning",
        ),
    ]


def _judging_metric(recipe: Recipe) -> list[Problem]:
    """A metric that the recipe does not score would name no best epoch and never end training."""
    best = recipe.config.recipe.metric_for_best
    if not recipe.metrics or best in recipe.metrics:
        return []
    why, fix = f"this recipe scores {', '.join(recipe.metrics)}", f"use recipe.metric_for_best={recipe.metrics[0]}"
    return [Problem("recipe.metric_for_best", best, why, fix)]


def _nothing_evaluated(config: RunConfig) -> list[Problem]:
    """What goes by evaluations, without a split to evaluate (a local data set's must be there anyway)."""
    if config.mode != "train" or config.dataset.source != "hub" or named_files(config.dataset, "validation"):
        return []
    fix = "add dataset.validation=SPLIT or leave it out"
    asked = {name: getattr(config.train, name) for name in _BY_EVALUATION}
    return [
        Problem(f"train.{name}", value, "there is no validation split to evaluate", fix)
        for name, value in asked.items()
        if value
    ]


def _head(config: RunConfig, recipe: Recipe) -> list[Problem]:
    """A classification head for another number of labels is replaced: said before the start, not
    found in the metrics.
    """
    facts = architecture_facts(config.model) if config.model.path and config.model.init == "pretrained" else {}
    names = config.dataset.label_names
    if (
        recipe.label_column is None
        or not names
        or not any("ForSequenceClassification" in name for name in facts.get("architectures") or [])
    ):
        return []
    has = (
        facts.get("num_labels") or len(facts.get("id2label") or {}) or 2
    )  # two is what transformers leaves out of the file
    if has == len(names):
        return []
    return [
        Problem(
            "model.path",
            config.model.path,
            f"its head is for {has} labels, the data has {len(names)} ({', '.join(names[:6])}): the head is new, with "
            "random weights",
            "",
            "notice",
        )
    ]
