"""The epochs of a run, in a rank: training, evaluation, checkpoints, the record, the final model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from runner import rundir
from runner.config import plan
from runner.config.schema import RunConfig
from runner.metrics import import_libraries
from runner.train import honesty, loop, machine_load, runtime_facts, saving
from runner.train.agreement import agreement_of
from runner.train.checkpointing import Checkpoints
from runner.train.context import RankContext
from runner.train.evaluation import Evaluation, evaluate, try_longest_batch
from runner.train.progress import MetricsLog, say
from runner.train.ranks import check_equal_parameters
from runner.train.step_log import StepLog
from runner.train.timing import peak_memory_bytes


@dataclass(frozen=True)
class Validation:
    """An evaluation of the validation split: after which step, its wall seconds, whether it is the best so far."""

    step: int
    found: Evaluation
    seconds: float
    better: bool


class Training:
    """One rank's part of a run that trains.

    Args:
        total_steps: optimizer steps of the run.
    """

    def __init__(self, context: RankContext, total_steps: int) -> None:
        self._context, self._total = context, total_steps
        self._state = loop.LoopState()
        self._agreement = agreement_of(context)
        self._checkpoints = Checkpoints(context, self._agreement)
        self._metrics_ready = False
        self._machine: dict[str, Any] = {}
        self._early_stopped = False
        self._newest: Validation | None = None

    def run(self) -> None:
        """Train to the end, from the newest checkpoint where there is one.

        Raises:
            Preempted: where the run was asked to end.
        """
        context, state = self._context, self._state
        self._checkpoints.restore(state)
        self._early_stopped = self._checkpoints.best.ends_training(context.config)
        self.begin(MetricsLog(context.output.folder, state.step) if context.place.is_main else None)
        self._try_evaluation()
        self._arm_faults()
        context.output.heartbeat.beat(phase="training", step=state.step, total=self._total, epoch=state.epoch)
        # A checkpoint from before the evaluation of the last epoch has all its steps, but not its end.
        while self._epochs_left():
            self._epoch()
        self._agreement.close()
        self._finish()

    def _epochs_left(self) -> bool:
        state = self._state
        if state.epoch >= self._context.config.train.epochs:
            return False
        # An epoch that has begun is brought to its end, whatever ended it.
        return bool(state.window) or not (self.is_over() or state.step >= self._total)

    def is_over(self) -> bool:
        """Whether early stopping ends training; the same answer on every rank."""
        return self._early_stopped

    def begin(self, log: MetricsLog | None) -> None:
        """Get ready for optimizer steps, which are logged where there is a log."""
        self._step_log = StepLog(self._context, self._total, log)
        self._context.prepared.model.train()

    def should_stop(self, step: int) -> bool:
        """Whether the run was asked to end before optimizer step `step` + 1; the same answer on every rank."""
        return self._agreement.stop_before(step, self._checkpoints.due_by_time())

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
        self._evaluate_by_steps()
        self._checkpoints.after_step(state)

    def _evaluate_by_steps(self) -> None:
        """Evaluate inside an epoch, when `train.evaluate_every_steps` says so; at an epoch's end is done there."""
        context, state = self._context, self._state
        per_epoch = plan.steps_per_epoch(len(context.task.training_split), context.config)
        if not self._due_by_steps() or not 0 < state.window < per_epoch or state.step >= self._total:
            return
        epoch = round(state.epoch + state.window / per_epoch, 4)
        done = self._validate(epoch)
        say("  ".join([f"step {state.step}/{self._total}", *_metric_words(done.found.metrics)]))
        self._checkpoints.after_evaluation(state, done.found.metrics, done.better)

    def _due_by_steps(self) -> bool:
        """Whether a number of steps is done after which to evaluate, and that has not been done."""
        every, state = self._context.config.train.evaluate_every_steps, self._state
        return every is not None and state.step % every == 0 and state.evaluated_step != state.step

    def _validate(self, epoch: float) -> Validation:
        """Evaluate the validation split, compare with the best so far, and put it into the record.

        Args:
            epoch: passes over the training split by now.

        Raises:
            Preempted: where the run was asked to end meanwhile; the evaluation is begun again after a resume.
        """
        context, state, clock = self._context, self._state, self._context.timing.clock
        began = clock.read()
        found = evaluate_split(context, "validation")
        seconds = clock.read() - began
        context.timing.epoch_began += seconds  # no part of the training time
        if found is None:
            self._stop()
        counted = state.evaluated_step == state.step  # before a resume
        state.evaluated_step = state.step
        best, config = self._checkpoints.best, context.config
        value = found.metrics.get(config.recipe.metric_for_best)
        better = not counted and best.see(config, value, state.step, epoch)
        self._early_stopped = best.ends_training(config)
        self._newest = Validation(state.step, found, seconds, better)
        record = context.output.record
        if record is not None and not counted:
            entry = {"step": state.step, "epoch": epoch, "metrics": found.metrics, "seconds": seconds}
            record.update(
                validations=[*(record.data.get("validations") or []), entry],
                metrics=found.metrics,
                best=best.for_record(config),
                optimizer_steps=state.step,
            )
            if found.confusion is not None and (better or not config.train.load_best_at_end):
                record.update(confusion={**found.confusion, "split": "validation"})
        return self._newest

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
        self._evaluate_by_steps()  # where a resume begins with one
        load_before = machine_load.reading() if context.place.is_main else None
        finished = loop.train_epoch(context, state, self._total, self)
        self._machine = self._load_since(load_before)
        train_seconds = clock.read() - context.timing.epoch_began
        if not finished:
            self._stop()
        last = self.is_over() or state.step >= self._total or state.epoch + 1 >= context.config.train.epochs
        if last:
            self._step_log.check_end(state)
        metrics, better = self._end_epoch(train_seconds, last)
        if self.is_over() and not last:
            self._step_log.check_end(state)
        state.start_next_epoch()
        context.timing.epochs.start_epoch()
        context.timing.epoch_began = clock.read()
        self._checkpoints.after_epoch(state, metrics, better)

    def _load_since(self, before: machine_load.Reading | None) -> dict[str, Any]:
        """What else the machine did while the epoch trained; empty but on rank 0."""
        if before is None:
            return {}
        on_gpu = self._context.config.launcher.device == "cuda"
        return machine_load.load_between(before, machine_load.reading(), on_gpu)

    def _stop(self) -> NoReturn:
        """Checkpoint, and end as preempted."""
        context, state = self._context, self._state
        self._agreement.close()
        self._checkpoints.before_stop(state)
        peaks = peak_bytes_of_ranks(context)
        if context.output.record is not None:
            context.output.record.update(
                optimizer_steps=state.step, peak_memory_bytes=peaks, phases=context.timing.phases()
            )
        raise rundir.Preempted(state.step)

    def _end_epoch(self, train_seconds: float, last: bool) -> tuple[dict[str, float], bool]:
        """Evaluate, and put the epoch into the record; returns the metrics, and whether they are the best so far."""
        context, state = self._context, self._state
        loss = loop.mean_loss(context.place, state)
        wanted = last or context.config.train.evaluate_every_epoch or self._due_by_steps()
        done: Validation | None = self._newest if self._newest and self._newest.step == state.step else None
        if done is None and wanted and "validation" in context.task.evaluated:
            done = self._validate(state.epoch + 1)
        peaks = peak_bytes_of_ranks(context)
        found = done.found if done else Evaluation({}, 0, 0)
        if context.output.record is not None:
            entry = {
                "epoch": state.epoch + 1,
                **context.timing.epochs.summary(train_seconds),
                "eval_seconds": done.seconds if done else None,
                "train_loss": loss,
                "metrics": found.metrics,
                "eval_rows": found.rows,
                "eval_rows_scored": found.scored,
                "machine": self._machine,
                "classes": found.classes,
            }
            self._record_epoch(entry, peaks)
        return found.metrics, done is not None and done.better

    def _record_epoch(self, entry: dict[str, Any], peaks: list[int]) -> None:
        context, record = self._context, self._context.output.record
        assert record is not None
        say(_epoch_line(context.config, entry))
        epochs = [*record.data.get("epochs", []), entry]
        record.update(
            epochs=epochs,
            metrics=entry["metrics"],
            optimizer_steps=self._state.step,
            samples_seen=self._state.samples_seen,
            peak_memory_bytes=peaks,
            observed=runtime_facts.facts(context),
            phases=context.timing.phases(),
        )

    def _finish(self) -> None:
        """Test split, equality of ranks, final weights."""
        context = self._context
        self._tell_early_stop()
        if context.config.train.load_best_at_end:
            self._load_best()
        test = evaluate_split(context, "test") if "test" in context.task.evaluated else None
        if test is None and "test" in context.task.evaluated:
            self._stop()
        checksums = check_equal_parameters(context.place, context.engine, context.prepared.bare, "after training")
        artifacts = {"predictions": "predictions", "metrics_log": "metrics.jsonl"}
        if context.config.train.save_model:
            context.output.heartbeat.beat(phase="saving the model")
            with context.timing.clock.phase("save_model"):
                folder = context.output.folder / "model"
                saving.save_model(context.engine, context.prepared, context.task, folder)
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

    def _tell_early_stop(self) -> None:
        record = self._context.output.record
        if record is None or not self.is_over() or self._state.step >= self._total:
            return
        step, epoch = self._state.step, record.data["validations"][-1]["epoch"]
        facts, sentence = self._checkpoints.best.early_stop(self._context.config, step, epoch)
        say(sentence)
        record.update(early_stopping=facts, notes=list(dict.fromkeys([*record.data.get("notes", []), sentence])))

    def _load_best(self) -> None:
        """The best evaluation's weights, for the test split and the final model."""
        best, config = self._checkpoints.best, self._context.config
        step = self._checkpoints.load_best(self._state.step)
        record = self._context.output.record
        if record is not None:
            is_best = best.value is not None and step == best.step
            weights = {"step": step, **({"best": best.for_record(config)} if is_best else {})}
            say(f"the weights of step {step} are kept" + (f", the best by {config.recipe.metric_for_best}" * is_best))
            record.update(weights=weights)


def make_metrics_ready(context: RankContext) -> None:
    """On rank 0: import what scores need, outside the times of training and evaluation."""
    with context.timing.clock.phase("startup"):
        recipe = context.task.recipe
        import_libraries(recipe.metrics, recipe.libraries)


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
    confusions: list[dict[str, Any]] = []
    if record is not None:
        make_metrics_ready(context)
    for name in context.task.evaluated:
        began = clock.read()
        found = evaluate_split(context, name)
        assert found is not None, "without training the runner ends its ranks instead of asking them"
        confusions += [{**found.confusion, "split": name}] if found.confusion is not None else []
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
            **({"confusion": confusions[0]} if confusions else {}),
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
    return "  ".join([*parts, *_metric_words(entry["metrics"])])


def _metric_words(metrics: dict[str, float]) -> list[str]:
    return [f"{name} {value:.4f}" for name, value in metrics.items()]
