"""A rank, from start to end: `python -m runner.train.worker RUN_DIR`, or started by the runner itself.

By hand: `accelerate launch --config_file RUN_DIR/accelerate.yaml -m runner.train.worker RUN_DIR` (the exact
line is in RUN_DIR/command.sh). It reads the finished configuration from the folder; it never imports Hydra.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from runner import generation, rundir
from runner.config import plan
from runner.config.schema import RunConfig
from runner.data.prepared import PreparedSplit, prepare_split
from runner.data.preparing import PREPARING
from runner.engines.rank import Factor, rank_engine_of
from runner.recipe import Recipe, load_recipe
from runner.rundir.failure import restart_reason
from runner.rundir.heartbeat import Heartbeat
from runner.rundir.record import Record, now
from runner.rundir.trial import is_trial
from runner.train import assets, honesty, loop, runtime_facts, saving
from runner.train.by_hand import run_by_hand
from runner.train.context import Output, RankContext, RankStart, Task, Timing
from runner.train.device_clock import clock_of
from runner.train.device_memory import limit_memory, memory_facts
from runner.train.faults import Faults
from runner.train.prepare_data import reporting
from runner.train.progress import say
from runner.train.ranks import RankPlace, check_equal_parameters, check_ranks
from runner.train.timing import EpochTimes
from runner.train.training import Training, evaluate_only

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def run_rank(folder: str) -> None:
    """Do a rank's whole work for the run folder."""
    run_dir = Path(folder)
    config = rundir.read_config(run_dir)
    # Ranks that torch elastic has started again take up the times in the checkpoint: what came before is in those.
    started = time.monotonic() if rundir.restart_count() else rundir.command_start(run_dir)
    _set_threads(config)
    engine = rank_engine_of(config)
    check_ranks(config, engine)
    place = RankPlace.of(config, engine)
    clock = clock_of(place.device.type)
    try:
        trial = is_trial(run_dir)
        if trial:
            limit_memory(config, place.device)
        output_folder = _own_folder(run_dir, place)
        clock.seconds["startup"] = time.monotonic() - started
        clock.on_entry = faults = Faults(place.rank)
        timing = Timing(started, clock, EpochTimes(config.train.warmup_steps_not_timed))
        output = Output(output_folder, Heartbeat(output_folder, place.rank))
        output.heartbeat.beat(phase="starting")
        start = RankStart(config, trial, engine, place, timing, output, faults)
        if rundir.started_by_runner():
            _work(start)
        else:
            _work_by_hand(start)
    except rundir.Preempted:
        engine.accelerator.end_training()
        raise
    except BaseException as error:
        # The process group stays as it is: NCCL's end is collective, and the others wait in another collective.
        error.facts = {"phase": clock.failed_in, **memory_facts(place.device)}  # type: ignore[attr-defined]
        raise
    engine.accelerator.end_training()  # without it about one run in ten aborts at exit


def _set_threads(config: RunConfig) -> None:
    assert isinstance(config.launcher.omp_num_threads, int), "resolved before the run"
    torch.set_num_threads(config.launcher.omp_num_threads)


def _own_folder(run_dir: Path, place: RankPlace) -> Path:
    """The folder to write to: the run folder, or by hand a new one inside it."""
    if rundir.started_by_runner():
        return run_dir
    chosen = rundir.by_hand_folder(run_dir) if place.is_main else run_dir
    return place.from_main(chosen)


def _work_by_hand(start: RankStart) -> None:
    """Without a runner nobody else closes the record."""
    status = "failed"
    reason: str | None = "the rank was ended"
    try:
        _work(start)
        status, reason = "completed", None
    except Exception as error:
        reason = f"rank 0: {type(error).__name__}: {error}"
        raise
    finally:
        if start.output.record is not None:
            start.output.record.end_attempt(status, reason)


def _work(start: RankStart) -> None:
    if start.place.is_main:
        start.output.record = rundir.open_record(start.output.folder, start.config)
        _note_restart(start.config, start.output.folder, start.output.record)
    context, total = load(start)
    runtime_facts.watch_activations(context)
    if context.output.record is not None:
        context.output.record.update(**_opening_facts(context, total))
    if context.config.mode == "train":
        Training(context, total).run()
    else:
        evaluate_only(context)


def _note_restart(config: RunConfig, folder: Path, record: Record) -> None:
    """After a restart by torch elastic: say why, in the attempt and on the terminal."""
    count = rundir.restart_count()
    if not count:
        return
    reason = restart_reason(folder, count)
    say(f"restart {count} of {config.launcher.max_restarts}: {reason}")
    attempt = record.data["attempts"][-1]
    attempt["restarts"] = [*attempt.get("restarts", []), {"at": now(), "reason": reason}]
    record.write()


def load(start: RankStart) -> tuple[RankContext, int]:
    """Data, model and optimizer, the same on all ranks; and the run's optimizer steps."""
    config = start.config
    task = _load_task(start)
    model = _load_model(start, task.recipe, task.tokenizer)
    total = plan.total_steps(len(task.training_split), config) if config.mode == "train" else 1
    with start.timing.clock.phase("model_load"):
        prepared = start.engine.prepare(model, _schedule(config, total))
        check_equal_parameters(start.place, start.engine, prepared.bare, "before training")
    return RankContext(**vars(start), task=task, prepared=prepared), total


def _schedule(config: RunConfig, total: int) -> Factor:
    return partial(plan.learning_rate_factor, scheduler=config.scheduler, total=total)


def _load_task(start: RankStart) -> Task:
    """Tokenizer and splits; the first rank to come tokenises, the others map its file."""
    config, place = start.config, start.place
    recipe = load_recipe(config)
    train: PreparedSplit | None = None
    evaluated = {}
    with start.timing.clock.phase("data_preparation"):
        start.output.heartbeat.beat(phase=PREPARING)
        report = reporting(start.output.heartbeat)
        tokenizer = assets.build_tokenizer(config)
        if config.mode == "train":
            train = prepare_split(recipe, tokenizer, "train", report)
        for name in ("validation", "test"):
            split = prepare_split(recipe, tokenizer, name, report)
            if split is not None and len(split):
                # In a trial as many of the longest rows as one evaluation batch of every replica holds.
                rows = config.train.eval_micro_batch_size * place.data_parallel_size
                evaluated[name] = split.longest(rows) if start.trial else split
    for name, split in [("train", train), *evaluated.items()]:
        start.output.notes += [f"{name}: {note}" for note in (split.notes if split is not None else [])]
    assets.check_text_is_known(tokenizer, train, *evaluated.values())
    start.output.notes += assets.tokenizer_notes(tokenizer)
    return Task(recipe, tokenizer, train, evaluated)


def _load_model(start: RankStart, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> torch.nn.Module:
    with start.timing.clock.phase("model_load"):
        start.output.heartbeat.beat(phase="loading model")
        with start.engine.building():
            model, notes = assets.build_model(recipe, tokenizer)
    start.output.notes += notes
    if start.place.is_main:
        for note in start.output.notes:
            say(f"notice: {note}")
    return model


def _opening_facts(context: RankContext, total: int) -> dict[str, Any]:
    """What is known before the first step, for the record."""
    train = context.task.train
    facts: dict[str, Any] = {
        "world_size": context.place.world_size,
        "global_batch_size": plan.global_batch_size(context.config),
        "planned_optimizer_steps": total if train is not None else 0,
        "num_parameters": saving.parameter_count(context.engine, context.prepared.bare),
        "trained_parameters": saving.trained_count(context.engine, context.prepared.bare),
        "data": {
            name: {
                "rows": len(split),
                "fingerprint": split.fingerprint,
                "generated": context.config.dataset.generated,
                "tokens": int(split.lengths.sum()),
                "longest_row_tokens": int(split.lengths.max()),
            }
            for name, split in [("train", train), *context.task.evaluated.items()]
            if split is not None
        },
        "notes": context.output.notes,
        "tokenizer": honesty.tokenizer_facts(context.task.tokenizer),
        "metric_definitions": context.task.recipe.metric_definitions(),
        "generation": generation.facts(context.prepared.bare, context.task.recipe),
    }
    if train is not None:
        facts["data_order_hash"] = loop.first_order_hash(context)
    return facts


if __name__ == "__main__":
    run_by_hand(run_rank, sys.argv[1:])
