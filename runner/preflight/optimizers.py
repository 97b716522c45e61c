"""Which optimizer goes with which engine, and what it needs installed."""

from __future__ import annotations

from runner.config.schema import RunConfig
from runner.engines import engine_of
from runner.errors import Problem
from runner.machine import is_installed
from runner.optimizers import optimizer_of


def optimizer_problems(config: RunConfig) -> list[Problem]:
    """Choices that cannot hold together, on any machine."""
    if config.mode != "train":
        return []
    chosen, engine, found = optimizer_of(config.optimizer), engine_of(config), []
    cuts, host, fused = engine.cuts_weights(config), engine.offloads_optimizer(config), engine.why_not_fused(config)
    if chosen.why_whole and cuts:
        why = f"{chosen.why_whole}, and {cuts} cuts them"
        found.append(Problem("optimizer", chosen.name, why, "use launcher=ddp, or optimizer=adamw"))
    elif chosen.why_no_shards and engine.shards_tensors(config):
        fix = f"use launcher=deepspeed zero_stage=3 optimizer={chosen.name}, or optimizer=adamw"
        found.append(Problem("optimizer", chosen.name, chosen.why_no_shards, fix))
    elif host and not chosen.deepspeed_owns:
        why = "DeepSpeed offloads the states of AdamW only: it puts its CPU Adam in the place of any other"
        found.append(Problem("optimizer", chosen.name, why, "use optimizer=adamw, or offload=none"))
    if fused and config.optimizer.fused is True and chosen.has_fused:
        found.append(Problem("optimizer.fused", True, *fused))
    return found


def check_optimizer_package(config: RunConfig) -> list[Problem]:
    """The library that the optimizer comes from."""
    chosen = optimizer_of(config.optimizer)
    if config.mode != "train" or chosen.package is None or is_installed(chosen.package):
        return []
    why = f"it comes from {chosen.package}, which is not installed"
    fix = f"pip install 'finetune-runner[{chosen.package}]', or use optimizer=adamw"
    return [Problem("optimizer", chosen.name, why, fix)]
