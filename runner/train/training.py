"""The epochs of a run, in a rank: training, evaluation, checkpoints, the record, the final model."""

from __future__ import annotations

from typing import Any, NoReturn

from runner import rundir
from runner.config.schema import RunConfig
from runner.metrics import import_libraries
from runner.train import honesty, loop, machine_load, runtime_facts, saving
from runner.train.checkpointing import Checkpoints
from runner.train.context import RankContext
from runner.train.evaluation import Evaluation, evaluate, try_longest_batch
from runner.train.progress import MetricsLog, say
from runner.train.ranks import check_equal_parameters
from runner.train.step_log import StepLog
from runner.train.timing import peak_memory_bytes


class Training:
    """One rank's part of a run that trains.

    Args:
        total_steps: optimizer steps of the run.
    """

    def __init__(self, context: RankContext, total_steps: int) -> None:
        self._context, self._total = context, total_steps
        self._state = loop.LoopState()
        self._checkpoints = Checkpoints(context)
        self._metrics_ready = False
        self._machine: dict[str, Any] = {}

    def run(self) -> None:
        """Train to the end, from the newest checkpoint where there is one.

        Raises:
            Preempted: where the run was asked to end.
        """
        context, state = self._context, self._state
        self._checkpoints.restore(state)
        self.begin(MetricsLog(context.output.folder, state.step) if context.place.is_main else None)
        self._try_evaluation()
        self._arm_faults()
        context.output.heartbeat.beat(phase="training", step=state.step, total=self._total, epoch=state.epoch)
        # A checkpoint from before the evaluation of the last epoch has all its steps, but not its end.
        while state.epoch < context.config.train.epochs and (state.step < self._total or state.window):
            self._epoch()
        self._finish()

    def begin(self, log: MetricsLog | None) -> None:
        """Get ready for optimizer steps, which are logged where there is a log."""
        self._step_log = StepLog(self._context, self._total, log)
        self._context.prepared.model.train()

    def should_stop(self, step: int) -> bool:
        """Whether the run was asked to end before optimizer step `step` + 1; the same answer on every rank."""
        self._checkpoints.ask_by_time(step)
        return rundir.stop_requested(self._context.output.folder, step, self._context.place.is_main)

    def after_step(self, state: loop.LoopState, result: loop.StepResult) -> None:
        """Account, prepare what comes after the first step, write a checkpoint when it is time."""
        self._step_log.step(state, result)
        context, record = self._context, self._context.output.record
        context.faults.step = state.step + 1
        if state.step == 1 and record is not None:
            record.update(time_to_first_step_seconds=context.timing.elapsed())
        if record is not None and not self._metrics_ready:
            clock = context.timing.clock
            began = clock.read()
            make_metrics_ready(context)
            self._metrics_ready = True
            context.timing.epoch_began += clock.read() - began  # no part of the epoch's training time
        self._checkpoints.after_step(state)

    def _arm_faults(self) -> None:
        context = self._context
        first = next(context.prepared.model.parameters())
        context.faults.first_parameter = lambda: context.engine.own_part(first)
        context.faults.step = self._state.step + 1

    def _try_evaluation(self) -> None:
        with self._context.timing.clock.phase("evaluation"):
            for name in self._context.task.evaluated:
                try_longest_batch(self._context, name)

    def _epoch(self) -> None:
        context, state, clock = self._context, self._state, self._context.timing.clock
        context.timing.epoch_began = clock.read() - state.epoch_seconds
        load_before = machine_load.reading() if context.place.is_main else None
        finished = loop.train_epoch(context, state, self._total, self)
        self._machine = self._load_since(load_before)
        train_seconds = clock.read() - context.timing.epoch_began
        if not finished:
            self._stop()
        last = state.step >= self._total or state.epoch + 1 >= context.config.train.epochs
        if last:
            self._step_log.check_end(state)
        metrics = self._end_epoch(train_seconds, last)
        state.start_next_epoch()
        context.timing.epochs.start_epoch()
        context.timing.epoch_began = clock.read()
        self._checkpoints.after_epoch(state, metrics)

    def _load_since(self, before: machine_load.Reading | None) -> dict[str, Any]:
        """What else the machine did while the epoch trained; empty but on rank 0."""
        if before is None:
            return {}
        on_gpu = self._context.config.launcher.device == "cuda"
        return machine_load.load_between(before, machine_load.reading(), on_gpu)

    def _stop(self) -> NoReturn:
        """Checkpoint, and end as preempted."""
        context, state = self._context, self._state
        self._checkpoints.before_stop(state)
        peaks = peak_bytes_of_ranks(context)
        if context.output.record is not None:
            context.output.record.update(
                optimizer_steps=state.step, peak_memory_bytes=peaks, phases=context.timing.phases()
            )
        raise rundir.Preempted(state.step)

    def _end_epoch(self, train_seconds: float, last: bool) -> dict[str, float]:
        """Evaluate, and put the epoch into the record; returns the metrics."""
        context, state, clock = self._context, self._state, self._context.timing.clock
        loss = loop.mean_loss(context.place, state)
        wanted = (last or context.config.train.evaluate_every_epoch) and "validation" in context.task.evaluated
        began = clock.read()
        found = evaluate_split(context, "validation") if wanted else None
        seconds = clock.read() - began
        if wanted and found is None:
            context.timing.epoch_began += seconds  # begun again after a resume, and no part of the training time
            self._stop()
        peaks = peak_bytes_of_ranks(context)
        metrics = found.metrics if found else {}
        if context.output.record is None:
            return metrics
        entry = {
            "epoch": state.epoch + 1,
            **context.timing.epochs.summary(train_seconds),
            "eval_seconds": seconds if found else None,
            "train_loss": loss,
            "metrics": metrics,
            "eval_rows": found.rows if found else 0,
            "eval_rows_scored": found.scored if found else 0,
            "machine": self._machine,
            "classes": found.classes if found else None,
        }
        self._record_epoch(entry, peaks)
        return metrics

    def _record_epoch(self, entry: dict[str, Any], peaks: list[int]) -> None:
        context, record = self._context, self._context.output.record
        assert record is not None
        say(_epoch_line(context.config, entry))
        epochs = [*record.data.get("epochs", []), entry]
        record.update(
            epochs=epochs,
            metrics=entry["metrics"],
            best=best_epoch(context.config, epochs),
            optimizer_steps=self._state.step,
            samples_seen=self._state.samples_seen,
            peak_memory_bytes=peaks,
            observed=runtime_facts.facts(context),
            phases=context.timing.phases(),
        )

    def _finish(self) -> None:
        """Test split, equality of ranks, final weights."""
        context = self._context
        test = evaluate_split(context, "test") if "test" in context.task.evaluated else None
        if test is None and "test" in context.task.evaluated:
            self._stop()
        checksums = check_equal_parameters(context.place, context.engine, context.prepared.bare, "after training")
        artifacts = {"predictions": "predictions", "metrics_log": "metrics.jsonl"}
        if context.config.train.save_model:
            context.output.heartbeat.beat(phase="saving the model")
            with context.timing.clock.phase("save_model"):
                folder = context.output.folder / "model"
                saving.save_model(context.engine, context.prepared, context.task.tokenizer, folder)
            artifacts["model"] = "model"
        record = context.output.record
        if record is not None:
            if test is not None:
                record.data["test"] = {"metrics": test.metrics, "rows": test.rows, "scored": test.scored}
            record.data["parameter_checksums"] = checksums
            _warn(context, _of_training(context, record.data.get("epochs", []), test))
            known = record.data.get("artifacts", {})
            record.update(artifacts={**known, **artifacts}, phases=context.timing.phases())
        context.output.heartbeat.beat(phase="done")


def make_metrics_ready(context: RankContext) -> None:
    """On rank 0: import what scores need, outside the times of training and evaluation."""
    with context.timing.clock.phase("startup"):
        import_libraries(context.task.recipe.metrics)


def evaluate_split(context: RankContext, name: str) -> Evaluation | None:
    """Evaluate one split, charged to its phase; None where the run was asked to stop in it."""
    with context.timing.clock.phase("evaluation"):
        return evaluate(context, name)


def peak_bytes_of_ranks(context: RankContext) -> list[int]:
    """Peak bytes of each rank, over all attempts that could tell; on rank 0 (elsewhere this attempt's)."""
    measured = context.place.gather(peak_memory_bytes(context.place.device.type))
    record = context.output.record
    before: list[int] = (record.data.get("peak_memory_bytes") if record is not None else None) or []
    return [max(pair) for pair in zip(measured, before, strict=True)] if len(before) == len(measured) else measured


def evaluate_only(context: RankContext) -> None:
    """`mode=evaluate`: the splits, without training."""
    clock, record = context.timing.clock, context.output.record
    results: dict[str, dict[str, Any]] = {}
    if record is not None:
        make_metrics_ready(context)
    for name in context.task.evaluated:
        began = clock.read()
        found = evaluate_split(context, name)
        assert found is not None, "without training the runner ends its ranks instead of asking them"
        results[name] = {
            "metrics": found.metrics,
            "rows": found.rows,
            "scored": found.scored,
            "eval_seconds": clock.read() - began,
            "classes": found.classes,
        }
    peaks = peak_bytes_of_ranks(context)
    if record is not None:
        best = context.config.recipe.metric_for_best
        for name, result in results.items():
            _warn(context, honesty.score_warnings(name, result["classes"], result["metrics"], best))
        first: dict[str, Any] = results.get("validation") or next(iter(results.values()), {"metrics": {}})
        record.update(
            evaluations=results,
            metrics=first["metrics"],
            optimizer_steps=0,
            peak_memory_bytes=peaks,
            phases=context.timing.phases(),
            artifacts={**record.data.get("artifacts", {}), "predictions": "predictions"},
        )


def _of_training(context: RankContext, epochs: list[dict[str, Any]], test: Evaluation | None) -> list[str]:
    """What makes the result of a training mean little, one sentence each."""
    best = context.config.recipe.metric_for_best
    found = honesty.loss_warning(epochs) + honesty.overlap_warnings(context.task.train, context.task.evaluated)
    if epochs:
        found += honesty.score_warnings("validation", epochs[-1].get("classes"), epochs[-1]["metrics"], best)
    return found + (honesty.score_warnings("test", test.classes, test.metrics, best) if test is not None else [])


def _warn(context: RankContext, found: list[str]) -> None:
    """On rank 0: into the record; the command prints them at its end."""
    record = context.output.record
    assert record is not None
    record.data["warnings"] = list(dict.fromkeys([*record.data.get("warnings", []), *found]))


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
    best = pick(known, key=lambda entry: float(entry["metrics"][name]))
    return {"epoch": best["epoch"], "metric": name, "value": best["metrics"][name]}
