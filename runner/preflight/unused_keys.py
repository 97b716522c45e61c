"""A key that has no effect is an error: what a user set must matter, or be refused with the choice that makes it
matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from runner import adapters, engines, machine, optimizers, schedules
from runner.adapters.base import Adapter
from runner.config.schema import RunConfig
from runner.engines.base import Engine, Rule
from runner.errors import Problem


def _writes_checkpoints(config: RunConfig) -> bool:
    asked = config.checkpoint
    return config.mode == "train" and any(
        (
            asked.every_steps,
            asked.every_epoch,
            asked.every_minutes,
            asked.keep_best,
            asked.on_preemption,
            config.train.load_best_at_end,
        )
    )


_FP16 = ("precision.initial_scale_power", "precision.loss_scale_window")
_FP16_MORE = ("precision.loss_scale", "precision.hysteresis", "precision.min_loss_scale")
_NOT_TRAINED, _TRAIN = "nothing is trained under mode=evaluate", "leave it out or add mode=train"
# Recipes and models bring values of their own for these, so that only what was typed can be meant.
_TRAINING = (
    "train.epochs",
    "train.max_steps",
    "train.micro_batch_size",
    "train.gradient_accumulation_steps",
    "train.global_batch_size",
    "train.gradient_clipping",
    "train.gradient_checkpointing",
    "train.log_every",
    "train.batching",
    "train.dataloader_workers",
    "optimizer",
    "scheduler",
)


def _of_optimizer(key: str) -> Rule:
    names = " and ".join(optimizers.reads(key))
    reads: Callable[[RunConfig], bool] = lambda c: key in optimizers.optimizer_of(c.optimizer).keys  # noqa: E731
    return Rule((f"optimizer.{key}",), reads, f"only {names} read it", "leave it out, or choose another optimizer")


def _of_schedule(key: str) -> Rule:
    names = " and ".join(schedules.reads(key))
    reads: Callable[[RunConfig], bool] = lambda c: key in schedules.schedule_of(c.scheduler).keys  # noqa: E731
    return Rule((f"scheduler.{key}",), reads, f"only {names} read it", "leave it out, or choose another scheduler")


RULES = (
    *map(_of_optimizer, ("betas", "eps", "momentum", "fused")),
    *map(_of_schedule, ("min_lr_ratio", "power", "decay_ratio", "decay_shape")),
    Rule(
        ("scheduler.warmup_steps",),
        lambda c: c.scheduler.warmup_ratio is None,
        "scheduler.warmup_ratio takes its place",
        "leave one of the two out",
    ),
    Rule(
        (*_FP16, *_FP16_MORE),
        lambda c: c.precision.name == "fp16",
        "only fp16 scales the loss",
        "add precision=fp16 or leave it out",
    ),
    Rule(
        ("launcher.gpu_ids",),
        lambda c: c.launcher.device == "cuda" or bool(machine.installed_devices()),
        "there is no GPU in this run",
        "leave it out or add launcher.device=cuda",
    ),
    Rule(
        ("model.revision",),
        lambda c: c.model.hub_id is not None and c.model.path is None,
        "a local folder has no revisions",
        "leave model.revision out",
    ),
    Rule(
        ("dataset.hub_id", "dataset.hub_config", "dataset.revision"),
        lambda c: c.dataset.source == "hub",
        "this data set is not read from the hub",
        "choose a hub data set (dataset=mrpc) or leave it out",
    ),
    Rule(
        (
            "train.warmup_steps_not_timed",
            "train.evaluate_every_epoch",
            "train.evaluate_every_steps",
            "train.early_stopping_patience",
            "train.load_best_at_end",
            "train.max_nonfinite_steps",
            "checkpoint.every_steps",
            "checkpoint.every_epoch",
            "checkpoint.every_minutes",
            "checkpoint.keep_best",
        ),
        lambda c: c.mode == "train",
        _NOT_TRAINED,
        _TRAIN,
    ),
    Rule(
        ("train.early_stopping_min_delta",),
        lambda c: c.mode == "train" and c.train.early_stopping_patience is not None,
        "training does not end early",
        "add train.early_stopping_patience=N or leave it out",
    ),
    Rule(
        ("train.early_stopping_patience", "train.load_best_at_end"),
        lambda c: c.train.evaluate_every_epoch or c.train.evaluate_every_steps is not None,
        "there is one evaluation, after the last step",
        "add train.evaluate_every_steps=N, or leave train.evaluate_every_epoch=false out",
    ),
    Rule(
        ("checkpoint.keep_last", "checkpoint.required"),
        _writes_checkpoints,
        "no checkpoints are written",
        "add checkpoint.every_steps=N or leave it out",
    ),
)


def _typed_for_training(typed: Iterable[str]) -> list[Problem]:
    return [
        Problem(name, None, f"this has no effect: {_NOT_TRAINED}", _TRAIN)
        for name in sorted(typed)
        if name in _TRAINING or name.startswith(("optimizer.", "scheduler."))
    ]


def unread_sections(names: Iterable[str], sections: tuple[str, ...], why: str) -> list[Problem]:
    """Typed keys of whole sections that this command does not read."""
    return [
        Problem(name, None, f"this has no effect: {why}", "leave it out")
        for name in sorted(names)
        if name.startswith(tuple(f"{section}." for section in sections))
    ]


# Options and models carry numbers that not every choice reads: only what was typed can be a mistake.
SET_BY_THEIR_GROUP = ("precision", "optimizer", "scheduler")


def every_rule() -> list[Rule]:
    """The runner's own rules and those of all engines and adapters."""
    owners: list[Engine | Adapter] = [*engines.every_engine(), *adapters.every_adapter()]
    return [*RULES, *(rule for owner in owners for rule in owner.rules())]


def unused_keys(config: RunConfig, typed: Iterable[str]) -> list[Problem]:
    """Keys that nothing reads in this run: those whose value differs from the schema's default, or, for training's own,
    that were typed.
    """
    default, typed = RunConfig(), frozenset(typed)
    problems = _typed_for_training(typed) if config.mode == "evaluate" else []
    for rule in every_rule():
        if rule.matters(config):
            continue
        for key in rule.keys:
            section, _, name = key.partition(".")
            if section in SET_BY_THEIR_GROUP and key not in typed:
                continue
            value = getattr(getattr(config, section), name)
            if value != getattr(getattr(default, section), name):
                problems.append(Problem(key, value, f"this has no effect: {rule.why}", rule.fix))
    return problems
