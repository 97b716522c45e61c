"""Complete training state: when it is written, what is in it, and how a rank takes it up again.

Every rank writes its own files next to the others' into a hidden folder, says how that went, and only when all
succeeded does rank 0 add the manifest and rename the folder. A failure anywhere deletes the torn folder; the
run continues with a warning and the earlier checkpoints.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from runner import rundir
from runner.checkpoint import folders, retention
from runner.checkpoint.folders import Checkpoint
from runner.checkpoint.manifest import FileFacts, Manifest, read_manifest, write_manifest
from runner.checkpoint.writing import Writer, failure_text, free_bytes
from runner.engines import engine_of
from runner.engines.rank import RankError
from runner.memory.amounts import in_words
from runner.rundir import provenance
from runner.rundir.record import now
from runner.train import loop
from runner.train.agreement import Agreement
from runner.train.best_so_far import BestSoFar
from runner.train.context import RankContext
from runner.train.progress import say
from runner.train.rng import generator_states, restore_generators
from runner.train.saving import trained_count

IN_RECORD = (
    "epochs",
    "validations",
    "metrics",
    "best",
    "early_stopping",
    "confusion",
    "samples_seen",
    "optimizer_steps",
    "time_to_first_step_seconds",
)


class CheckpointFailed(RuntimeError):
    """A checkpoint that `checkpoint.required` asks for could not be written."""


class Checkpoints:
    """Writes and reads the checkpoints of a run, as one of its ranks."""

    def __init__(self, context: RankContext, agreement: Agreement) -> None:
        self._context, self._settings, self._agreement = context, context.config.checkpoint, agreement
        self._folder, self._is_main = context.output.folder, context.place.is_main
        self._saved: tuple[int, bool] | None = None  # newest of this run: step, evaluated
        self._keeps_best = self._settings.keep_best or context.config.train.load_best_at_end
        self.best = BestSoFar()
        self._last_written = time.monotonic()
        self._known_bytes = 0
        self._data_facts: dict[str, Any] | None = None

    def due_by_time(self) -> bool:
        """On rank 0: whether the minutes are over, so that all ranks are to write after the next step."""
        minutes = self._settings.every_minutes
        return minutes is not None and self._is_main and time.monotonic() - self._last_written >= minutes * 60

    def after_step(self, state: loop.LoopState) -> None:
        """Write when it is time, by steps or by minutes; the same decision on every rank."""
        by_time = self._settings.every_minutes and self._agreement.checkpoint_after(state.step)
        if self._saved != (state.step, True) and (self._by_steps(state) or by_time):
            self.save(state)

    def _by_steps(self, state: loop.LoopState) -> bool:
        every = self._settings.every_steps
        return every is not None and state.step % every == 0

    def after_epoch(self, state: loop.LoopState, metrics: dict[str, float], better: bool) -> None:
        """Write after an epoch and its evaluation, when every epoch or the best one is kept.

        Args:
            state: moved on to the next epoch.
            better: whether the evaluation is the best so far.
        """
        # A step's checkpoint from before the evaluation is replaced by one that knows the metric.
        if self._settings.every_epoch or (self._keeps_best and better) or self._saved == (state.step, False):
            self.save(state, evaluated=True, metric=metrics.get(self._context.config.recipe.metric_for_best))

    def after_evaluation(self, state: loop.LoopState, metrics: dict[str, float], better: bool) -> None:
        """Write after an evaluation inside an epoch, when it is the best and that is kept, or a step's is due."""
        if (self._keeps_best and better) or self._by_steps(state):
            self.save(state, evaluated=True, metric=metrics.get(self._context.config.recipe.metric_for_best))

    def before_stop(self, state: loop.LoopState) -> None:
        """Write where the run was asked to end, unless that step has its checkpoint already."""
        if self._settings.on_preemption and (self._saved is None or self._saved[0] != state.step):
            self.save(state)

    def save(self, state: loop.LoopState, evaluated: bool = False, metric: float | None = None) -> bool:
        """Write a checkpoint; returns whether it is complete. All ranks take part, and learn the same answer.

        Raises:
            CheckpointFailed: where it is not complete, and `checkpoint.required`.
        """
        timing, heartbeat = self._context.timing, self._context.output.heartbeat
        began = timing.clock.read()
        heartbeat.beat(phase="writing a checkpoint")
        with timing.clock.phase("checkpoint"):
            error = self._write(state, evaluated, metric)
        seconds = timing.clock.read() - began
        timing.epoch_began += seconds  # an epoch's training time is without its checkpoints
        self._last_written = time.monotonic()
        heartbeat.beat(phase="training")
        if error is None:
            self._saved = (state.step, evaluated)
        if self._is_main:  # all ranks have acted on it by now
            (self._folder / f"{rundir.CHECKPOINT_AT}_{state.step}").unlink(missing_ok=True)
        self._tell(state, evaluated, error, seconds)
        if error is not None and self._settings.required:
            raise CheckpointFailed(f"no checkpoint at step {state.step}: {error}")
        return error is None

    def _write(self, state: loop.LoopState, evaluated: bool, metric: float | None) -> str | None:
        partial = folders.partial_folder(self._folder, state.step, evaluated)
        writer = Writer(partial)
        if self._is_main:
            writer.error = self._make_room(partial)
        error = self._agree(writer)
        if error is None:
            self._write_states(writer, state)
            error = self._agree(writer)
        files = {name: facts for own in self._context.place.gather(writer.files) for name, facts in own.items()}
        if self._is_main and error is None:
            writer.error = self._complete(
                partial,
                folders.name_of(state.step, evaluated),
                _manifest(self._context, state, evaluated, metric, files),
            )
        error = error or self._agree(writer)
        if self._is_main and error is not None:
            shutil.rmtree(partial, ignore_errors=True)
        return error

    def _make_room(self, partial: Path) -> OSError | None:
        """On rank 0: an empty folder on a volume with enough free space."""
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        except OSError as error:
            return error
        if free_bytes(partial) < self.needed_bytes():
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    def needed_bytes(self) -> int:
        """Size of a checkpoint: the last one's, or what its parts have to take (no margin, so that none is refused that
        fits).
        """
        if self._known_bytes:
            return self._known_bytes
        context = self._context
        parameters = trained_count(context.engine, context.prepared.bare)
        return engine_of(context.config).checkpoint_bytes(context.config, parameters)

    def _agree(self, writer: Writer) -> str | None:
        """The first failure on any rank, as text; the same on every rank."""
        own = None if writer.error is None else failure_text(writer.error, writer.folder.parent, self.needed_bytes())
        return next((text for text in self._context.place.gather(own) if text is not None), None)

    def _write_states(self, writer: Writer, state: loop.LoopState) -> None:
        context = self._context
        shared = {"data": self._data(), "best": vars(self.best)}
        writer.save({**_rank_state(context, state), **shared}, f"rank_{context.place.rank}.pt")
        context.engine.save_state(context.prepared, writer)

    def _complete(self, partial: Path, name: str, manifest: Manifest) -> OSError | None:
        """On rank 0: the manifest, the rename, then what is no longer kept goes."""
        try:
            write_manifest(partial, manifest)
            folders.put_in_place(partial, partial.with_name(name))
        except OSError as error:
            return error
        self._known_bytes = manifest.bytes
        return None

    def _tell(self, state: loop.LoopState, evaluated: bool, error: str | None, seconds: float) -> None:
        record = self._context.output.record
        if record is None:
            return
        if error is not None:
            kept = folders.newest(self._folder, checksums=False)
            warning = (
                f"no checkpoint at step {state.step}: {error}; "
                + (f"{kept.path.name} is kept" if kept else "there is none so far")
                + ("" if self._settings.required else ", training continues")
            )
            self._warn(warning)
            return
        policy = retention.Policy(
            self._settings.keep_last, self._keeps_best, self._context.config.recipe.greater_is_better
        )
        removed = retention.apply(self._folder, policy)
        gone = f"; removed {', '.join(removed)}" if removed else ""
        say(
            f"checkpoint {folders.name_of(state.step, evaluated)}: {in_words(self._known_bytes)} in {seconds:.1f} "
            f"s{gone}"
        )
        record.update(artifacts={**record.data.get("artifacts", {}), "checkpoints": folders.CHECKPOINTS})

    def _warn(self, text: str) -> None:
        """On rank 0: to the terminal and into the record."""
        say(f"warning: {text}")
        record = self._context.output.record
        assert record is not None
        record.update(warnings=[*record.data.get("warnings", []), text])

    def restore(self, state: loop.LoopState) -> bool:
        """Take up the newest checkpoint of the run folder; returns False where there is none.

        The runner has checked its checksums before it started the ranks; after a restart by torch elastic they
        are checked here.

        Raises:
            RankError: when the data is not what the checkpoint was trained on.
        """
        context, record = self._context, self._context.output.record
        restarted = rundir.restart_count() > 0
        if self._is_main and restarted:
            folders.remove_torn(self._folder)
        chosen = context.place.from_main(folders.newest(self._folder, restarted) if self._is_main else None)
        if chosen is None:
            if record is not None:  # torch elastic may have started the ranks again before a checkpoint was written
                record.data.update(epochs=[], validations=[], metrics={}, best=None, samples_seen=0, optimizer_steps=0)
            return False
        with context.timing.clock.phase("checkpoint"):
            context.output.heartbeat.beat(phase="loading the checkpoint")
            manifest = read_manifest(chosen.path)
            self._load_states(chosen, manifest)
            own = _read(chosen.path / f"rank_{context.place.rank % manifest.world_size}.pt")
            first = _read(chosen.path / "rank_0.pt")
        self._take_up(state, own, first)
        self._saved, self._known_bytes = (manifest.step, manifest.evaluated), manifest.bytes
        self.best = BestSoFar(**first["best"])
        return True

    def load_best(self, step: int) -> int:
        """Take up the weights of the best evaluation; returns the step whose weights there are now.

        Args:
            step: the newest one, whose weights stay where no checkpoint holds the best ones.
        """
        context, greater = self._context, self._context.config.recipe.greater_is_better
        if self.best.value is None or self.best.step == step:
            return step
        chosen = context.place.from_main(retention.best(self._folder, greater) if self._is_main else None)
        if chosen is None or chosen.step != self.best.step:
            if self._is_main:
                self._warn(
                    f"no whole checkpoint holds the best weights (step {self.best.step}): the weights of the last step "
                    "are tested and saved"
                )
            return step
        with context.timing.clock.phase("checkpoint"):
            context.output.heartbeat.beat(phase="loading the best checkpoint")
            self._load_states(chosen, read_manifest(chosen.path))
        return chosen.step

    def _data(self) -> dict[str, Any]:
        """What the position in the data refers to."""
        if self._data_facts is None:
            self._data_facts = {
                "rows": len(self._context.task.training_split),
                "order": loop.first_order_hash(self._context),
            }
        return self._data_facts

    def _load_states(self, chosen: Checkpoint, manifest: Manifest) -> None:
        context = self._context
        universal = folders.universal_folder(chosen)
        converted = manifest.world_size != context.place.world_size and universal.is_dir()
        context.engine.load_state(context.prepared, chosen.path, universal if converted else None)

    def _take_up(self, state: loop.LoopState, own: dict[str, Any], first: dict[str, Any]) -> None:
        """Loop position, generators, times and the record's epochs."""
        context, record = self._context, self._context.output.record
        place, timing = context.place, context.timing
        _check_data(own["data"], self._data())
        for name, value in own["loop"].items():
            setattr(state, name, value)
        if place.world_size != own["world_size"]:
            # The sum of all ranks' parts is what counts; with another number of ranks rank 0 carries it.
            state.loss_sum = first["loss_sum_of_all"] if place.is_main else 0.0
        timing.epochs.restore(own["times"])
        for phase, seconds in own["phases"].items():
            timing.clock.seconds[phase] += seconds
        timing.started -= first["elapsed"]
        if own["scheduler"] is not None and context.prepared.scheduler is not None:
            context.prepared.scheduler.load_state_dict(own["scheduler"])
        if record is not None:
            record.data.update(json.loads(first["record"]))
            record.data["attempts"][-1]["resumed_from_step"] = state.step
            record.write()
        restore_generators(own["generators"], place.device)


def _check_data(before: dict[str, Any], present: dict[str, Any]) -> None:
    """The position in the data means something only in the same data."""
    if before != present:
        raise RankError(
            f"the training data is not the checkpoint's: it had {before['rows']} rows in the order {before['order']}, "
            f"now there are {present['rows']} in the order {present['order']}; resume with the old data, or start a "
            "new run"
        )


def _read(path: Path) -> dict[str, Any]:
    """A file of ours: tensors and plain values; nothing in it can be executed."""
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content


def _rank_state(context: RankContext, state: loop.LoopState) -> dict[str, Any]:
    """What belongs to this rank: position, generators, times; on rank 0 also the record so far."""
    timing, scheduler = context.timing, context.prepared.scheduler
    record = context.output.record.data if context.output.record is not None else {}
    position = {
        **vars(state),
        "loss_sum": float(state.loss_sum),
        "epoch_seconds": timing.clock.read() - timing.epoch_began,
    }
    return {
        "loop": position,
        "world_size": context.place.world_size,
        "generators": generator_states(context.place.device),
        "times": timing.epochs.state(),
        "phases": dict(timing.clock.seconds),
        "elapsed": timing.elapsed(),
        "scheduler": scheduler.state_dict() if scheduler is not None else None,
        "loss_sum_of_all": context.place.sum_over_replicas([float(state.loss_sum)])[0],
        "record": json.dumps({name: record.get(name) for name in IN_RECORD}),
    }


def _manifest(
    context: RankContext, state: loop.LoopState, evaluated: bool, metric: float | None, files: dict[str, FileFacts]
) -> Manifest:
    config = context.config
    return Manifest(
        step=state.step,
        epoch=state.epoch,
        window=state.window,
        evaluated=evaluated,
        metric=metric if metric is not None and math.isfinite(metric) else None,
        world_size=context.place.world_size,
        launcher=config.launcher.name,
        zero_stage=context.engine.partition_stage,
        micro_batch_size=config.train.micro_batch_size,
        gradient_accumulation_steps=config.train.gradient_accumulation_steps,
        config_hash=provenance.config_hash(config),
        written_at=now(),
        versions=provenance.versions(),
        files=files,
    )
