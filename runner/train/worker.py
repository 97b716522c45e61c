"""A rank, from start to end: `python -m runner.train.worker RUN_DIR`, or started by the runner itself.

By hand: `accelerate launch --config_file RUN_DIR/accelerate.yaml -m runner.train.worker RUN_DIR` (the exact
line is in RUN_DIR/command.sh). It reads the finished configuration from the folder; it never imports Hydra.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from runner import rundir
from runner.config import plan
from runner.config.schema import RunConfig
from runner.data.prepared import PreparedSplit, prepare_split
from runner.metrics import import_libraries
from runner.recipe import Recipe, load_recipe
from runner.rundir.failure import restart_reason
from runner.rundir.heartbeat import Heartbeat
from runner.rundir.record import now
from runner.rundir.trial import is_trial
from runner.train import assets, loop, optimization, runtime_facts, saving
from runner.train.by_hand import run_by_hand
from runner.train.checkpointing import Checkpoints
from runner.train.device_memory import limit_memory, memory_facts
from runner.train.evaluation import Evaluation, evaluate, try_longest_batch
from runner.train.faults import Faults
from runner.train.progress import MetricsLog, say
from runner.train.ranks import build_accelerator, check_equal_parameters, gather_objects
from runner.train.timing import EpochTimes, PhaseClock, device_synchronizer, peak_memory_bytes


@dataclass
class RankRun:
    """Everything a rank holds while it works."""

    run_dir: Path
    config: RunConfig
    started: float  # of the command, on the machine's monotonic clock, in seconds
    clock: PhaseClock
    recipe: Recipe
    accelerator: Any
    heartbeat: Heartbeat
    faults: Faults
    trial: bool = False  # of `fit`: the longest rows first, and an evaluation of the longest batch only
    tokenizer: Any = None
    train_split: PreparedSplit | None = None
    evaluated: dict[str, PreparedSplit] = field(default_factory=dict)
    prepared: Any = None
    times: EpochTimes = field(default_factory=lambda: EpochTimes(0))
    record: Any = None  # rank 0 only
    notes: list[str] = field(default_factory=list)
    activation_dtype: str | None = None
    window: Any = None  # the optimizer step under way, as planned
    first_bad: tuple[int, list[int]] = (0, [])  # step and rows of this rank where the loss stopped being finite
    checkpoints: Any = None
    metrics_ready: bool = False
    epoch_began: float = 0.0  # on the clock, moved on by the time that checkpoints took

    def elapsed(self) -> float:
        """Seconds since the command was typed."""
        return time.monotonic() - self.started

    def to_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch's tensors on this rank's device."""
        return {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}

    def should_stop(self, step: int) -> bool:
        """Whether the run was asked to end before optimizer step `step` + 1; the same answer on every rank."""
        self.checkpoints.ask_by_time(step)
        return rundir.stop_requested(self.run_dir, step, self.accelerator.is_main_process)

    def after_step(self, state: loop.LoopState) -> None:
        """Called after every optimizer step."""
        self.faults.step = state.step + 1
        if state.step == 1 and self.record is not None:
            self.record.update(time_to_first_step_seconds=self.elapsed())
        if self.record is not None and not self.metrics_ready:
            began = self.clock.read()
            self.make_metrics_ready()
            self.epoch_began += self.clock.read() - began  # no part of the epoch's training time
        self.checkpoints.after_step(state)

    def make_metrics_ready(self) -> None:
        """On rank 0: import what scores need, outside the times of training and evaluation."""
        with self.clock.phase("startup"):
            import_libraries(self.recipe.metrics)
        self.metrics_ready = True


def run_rank(folder: str) -> None:
    """Do a rank's whole work for the run folder."""
    run_dir = Path(folder)
    config = rundir.read_config(run_dir)
    # Ranks that torch elastic has started again take up the times in the checkpoint: what came before is in those.
    started = time.monotonic() if rundir.restart_count() else rundir.command_start(run_dir)
    _set_threads(config)
    accelerator = build_accelerator(config)
    clock = PhaseClock(device_synchronizer(accelerator.device.type))
    try:
        trial = is_trial(run_dir)
        run_dir = _own_folder(run_dir, accelerator)
        if trial:
            limit_memory(config, accelerator.device)
        clock.seconds["startup"] = time.monotonic() - started
        rank = accelerator.process_index
        clock.on_entry = faults = Faults(rank)
        run = RankRun(
            run_dir, config, started, clock, load_recipe(config), accelerator, Heartbeat(run_dir, rank), faults, trial
        )
        run.heartbeat.beat(phase="starting")
        if rundir.started_by_runner():
            _work(run)
        else:
            _work_by_hand(run)
    except rundir.Preempted:
        accelerator.end_training()
        raise
    except BaseException as error:
        # The process group stays as it is: NCCL's end is collective, and the others wait in another collective.
        error.facts = {"phase": clock.failed_in, **memory_facts(accelerator.device)}  # type: ignore[attr-defined]
        raise
    accelerator.end_training()  # without it about one run in ten aborts at exit


def _set_threads(config: RunConfig) -> None:
    assert isinstance(config.launcher.omp_num_threads, int), "resolved before the run"
    torch.set_num_threads(config.launcher.omp_num_threads)


def _own_folder(run_dir: Path, accelerator: Any) -> Path:
    """The folder to write to: the run folder, or by hand a new one inside it."""
    if rundir.started_by_runner():
        return run_dir
    chosen = rundir.by_hand_folder(run_dir) if accelerator.is_main_process else None
    return next(path for path in gather_objects(accelerator, chosen) if path is not None)


def _work_by_hand(run: RankRun) -> None:
    """Without a runner nobody else closes the record."""
    status = "failed"
    reason: str | None = "the rank was ended"
    try:
        _work(run)
        status, reason = "completed", None
    except Exception as error:
        reason = f"rank 0: {type(error).__name__}: {error}"
        raise
    finally:
        if run.record is not None:
            run.record.end_attempt(status, reason)


def _work(run: RankRun) -> None:
    if run.accelerator.is_main_process:
        run.record = rundir.open_record(run.run_dir, run.config)
        _note_restart(run)
    _load_data(run)
    model = _load_model(run)
    total = loop.total_optimizer_steps(run) if run.config.mode == "train" else 1
    with run.clock.phase("model_load"):
        run.prepared = optimization.prepare(run.config, run.accelerator, model, total)
        check_equal_parameters(run.accelerator, run.accelerator.unwrap_model(run.prepared.model), "before training")
    runtime_facts.watch_activations(run)
    run.times = EpochTimes(run.config.train.warmup_steps_not_timed)
    if run.record is not None:
        run.record.update(**_opening_facts(run, total))
    if run.config.mode == "train":
        _train(run, total)
    else:
        _evaluate_only(run)


def _note_restart(run: RankRun) -> None:
    """After a restart by torch elastic: say why, in the attempt and on the terminal."""
    count = rundir.restart_count()
    if not count:
        return
    reason = restart_reason(run.run_dir, count)
    say(f"restart {count} of {run.config.launcher.max_restarts}: {reason}")
    attempt = run.record.data["attempts"][-1]
    attempt["restarts"] = [*attempt.get("restarts", []), {"at": now(), "reason": reason}]
    run.record.write()


def _load_data(run: RankRun) -> None:
    """Tokenizer and splits; the first rank to come tokenises, the others map its file."""
    with run.clock.phase("data_preparation"):
        run.heartbeat.beat(phase="preparing data")
        run.tokenizer = assets.build_tokenizer(run.config)
        if run.config.mode == "train":
            run.train_split = prepare_split(run.recipe, run.tokenizer, "train")
        for name in ("validation", "test"):
            split = prepare_split(run.recipe, run.tokenizer, name)
            if split is not None and len(split):
                run.evaluated[name] = _longest_only(run, split) if run.trial else split
    for name, split in [("train", run.train_split), *run.evaluated.items()]:
        run.notes += [f"{name}: {note}" for note in (split.notes if split is not None else [])]


def _load_model(run: RankRun) -> Any:
    with run.clock.phase("model_load"):
        run.heartbeat.beat(phase="loading model")
        model, notes = assets.build_model(run.recipe, run.tokenizer)
    run.notes += notes
    if run.accelerator.is_main_process:
        for note in run.notes:
            say(f"notice: {note}")
    return model


def _opening_facts(run: RankRun, total: int) -> dict[str, Any]:
    """What is known before the first step, for the record."""
    train = run.train_split
    facts: dict[str, Any] = {
        "world_size": run.accelerator.num_processes,
        "global_batch_size": plan.global_batch_size(run.config),
        "planned_optimizer_steps": total if train is not None else 0,
        "num_parameters": sum(
            torch.Size(shape).numel()
            for shape in saving.whole_shapes(run.accelerator.unwrap_model(run.prepared.model)).values()
        ),
        "data": {
            name: {
                "rows": len(split),
                "fingerprint": split.fingerprint,
                "generated": run.config.dataset.generated,
                "tokens": int(split.lengths.sum()),
                "longest_row_tokens": int(split.lengths.max()),
            }
            for name, split in [("train", train), *run.evaluated.items()]
            if split is not None
        },
        "notes": run.notes,
    }
    if train is not None:
        facts["data_order_hash"] = loop.first_order_hash(run)
    return facts


def _train(run: RankRun, total: int) -> None:
    state = loop.LoopState()
    run.checkpoints = Checkpoints(run)
    run.checkpoints.restore(state)
    log = MetricsLog(run.run_dir, state.step) if run.accelerator.is_main_process else None
    run.prepared.model.train()
    _try_evaluation(run)
    run.faults.model, run.faults.step = run.prepared.model, state.step + 1
    run.heartbeat.beat(phase="training", step=state.step, total=total, epoch=state.epoch)
    # A checkpoint from before the evaluation of the last epoch has all its steps, but not its end.
    while state.epoch < run.config.train.epochs and (state.step < total or state.window):
        run.epoch_began = run.clock.read() - state.epoch_seconds
        finished = loop.train_epoch(run, state, total, run.heartbeat, log)
        train_seconds = run.clock.read() - run.epoch_began
        if not finished:
            _stop(run, state)
        last = state.step >= total or state.epoch + 1 >= run.config.train.epochs
        metrics = _end_epoch(run, state, train_seconds, last)
        state.start_next_epoch()
        run.times.start_epoch()
        run.epoch_began = run.clock.read()
        run.checkpoints.after_epoch(state, metrics)
    _finish(run, state)


def _longest_only(run: RankRun, split: PreparedSplit) -> PreparedSplit:
    """As many of a split's longest rows as one evaluation batch of every rank holds."""
    return split.longest(run.config.train.eval_micro_batch_size * run.accelerator.num_processes)


def _try_evaluation(run: RankRun) -> None:
    with run.clock.phase("evaluation"):
        for name, split in run.evaluated.items():
            try_longest_batch(run, split, name)


def _stop(run: RankRun, state: loop.LoopState) -> None:
    """Checkpoint, and end as preempted."""
    run.checkpoints.before_stop(state)
    peaks = _peaks(run)
    if run.record is not None:
        run.record.update(optimizer_steps=state.step, peak_memory_bytes=peaks, phases=run.clock.phases(run.elapsed()))
    raise rundir.Preempted(state.step)


def _end_epoch(run: RankRun, state: loop.LoopState, train_seconds: float, last: bool) -> dict[str, float]:
    """Evaluate, and put the epoch into the record; returns the metrics."""
    loss = loop.mean_loss(run, state)
    wanted = (last or run.config.train.evaluate_every_epoch) and "validation" in run.evaluated
    began = run.clock.read()
    found = evaluate_split(run, "validation") if wanted else None
    seconds = run.clock.read() - began
    if wanted and found is None:
        run.epoch_began += seconds  # begun again after a resume, and no part of the training time
        _stop(run, state)
    peaks = _peaks(run)
    metrics = found.metrics if found else {}
    if run.record is None:
        return metrics
    entry = {
        "epoch": state.epoch + 1,
        **run.times.summary(train_seconds),
        "eval_seconds": seconds if found else None,
        "train_loss": loss,
        "metrics": metrics,
        "eval_rows": found.rows if found else 0,
        "eval_rows_scored": found.scored if found else 0,
    }
    say(_epoch_line(run.config, entry))
    epochs = [*run.record.data.get("epochs", []), entry]
    run.record.update(
        epochs=epochs,
        metrics=entry["metrics"],
        best=best_epoch(run.config, epochs),
        optimizer_steps=state.step,
        samples_seen=state.samples_seen,
        peak_memory_bytes=peaks,
        observed=runtime_facts.facts(run),
        phases=run.clock.phases(run.elapsed()),
    )
    return metrics


def _epoch_line(config: RunConfig, entry: dict[str, Any]) -> str:
    parts = [f"epoch {entry['epoch']}/{config.train.epochs}", f"train {entry['train_seconds']:.1f} s"]
    parts += [f"loss {entry['train_loss']:.4f}"] if entry["train_loss"] is not None else []
    parts += [f"eval {entry['eval_seconds']:.1f} s"] if entry["eval_seconds"] is not None else []
    parts += [f"{name} {value:.4f}" for name, value in entry["metrics"].items()]
    return "  ".join(parts)


def best_epoch(config: RunConfig, epochs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The epoch with the best value of the recipe's metric."""
    name = config.recipe.metric_for_best
    known = [entry for entry in epochs if entry["metrics"].get(name) is not None]
    if not known:
        return None
    pick = max if config.recipe.greater_is_better else min
    best = pick(known, key=lambda entry: entry["metrics"][name])
    return {"epoch": best["epoch"], "metric": name, "value": best["metrics"][name]}


def _peaks(run: RankRun) -> list[int]:
    """Peak bytes of each rank, over all attempts that could tell; on rank 0 (elsewhere this attempt's)."""
    measured: list[int] = gather_objects(run.accelerator, peak_memory_bytes(run.accelerator.device.type))
    before = (run.record.data.get("peak_memory_bytes") if run.record is not None else None) or []
    return [max(pair) for pair in zip(measured, before, strict=True)] if len(before) == len(measured) else measured


def evaluate_split(run: RankRun, name: str) -> Evaluation | None:
    """Evaluate one split, charged to its phase; None where the run was asked to stop in it."""
    with run.clock.phase("evaluation"):
        return evaluate(run, run.evaluated[name], name, run.heartbeat)


def _finish(run: RankRun, state: loop.LoopState) -> None:
    """Test split, equality of ranks, final weights."""
    test = evaluate_split(run, "test") if "test" in run.evaluated else None
    if test is None and "test" in run.evaluated:
        _stop(run, state)
    checksums = check_equal_parameters(
        run.accelerator, run.accelerator.unwrap_model(run.prepared.model), "after training"
    )
    artifacts = {"predictions": "predictions", "metrics_log": "metrics.jsonl"}
    if run.config.train.save_model:
        run.heartbeat.beat(phase="saving the model")
        with run.clock.phase("save_model"):
            saving.save_model(run.accelerator, run.prepared.model, run.tokenizer, run.run_dir / "model")
        artifacts["model"] = "model"
    if run.record is not None:
        if test is not None:
            run.record.data["test"] = {"metrics": test.metrics, "rows": test.rows, "scored": test.scored}
        run.record.data["parameter_checksums"] = checksums
        known = run.record.data.get("artifacts", {})
        run.record.update(artifacts={**known, **artifacts}, phases=run.clock.phases(run.elapsed()))
    run.heartbeat.beat(phase="done")


def _evaluate_only(run: RankRun) -> None:
    """`mode=evaluate`: the splits, without training."""
    results = {}
    if run.record is not None:
        run.make_metrics_ready()
    for name in run.evaluated:
        began = run.clock.read()
        found = evaluate_split(run, name)
        assert found is not None, "without training the runner ends its ranks instead of asking them"
        results[name] = {
            "metrics": found.metrics,
            "rows": found.rows,
            "scored": found.scored,
            "eval_seconds": run.clock.read() - began,
        }
    peaks = _peaks(run)
    if run.record is not None:
        first: dict[str, Any] = results.get("validation") or next(iter(results.values()), {"metrics": {}})
        run.record.update(
            evaluations=results,
            metrics=first["metrics"],
            optimizer_steps=0,
            peak_memory_bytes=peaks,
            phases=run.clock.phases(run.elapsed()),
            artifacts={**run.record.data.get("artifacts", {}), "predictions": "predictions"},
        )


if __name__ == "__main__":
    run_by_hand(run_rank, sys.argv[1:])
