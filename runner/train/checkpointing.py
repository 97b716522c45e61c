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
from runner.rundir import provenance
from runner.rundir.record import now
from runner.train import loop
from runner.train.progress import say
from runner.train.ranks import RankError, gather_objects, sum_over_ranks
from runner.train.rng import generator_states, restore_generators
from runner.train.saving import whole_shapes
from runner.train.writing import Writer, deepspeed_writes_through, failure_text, free_bytes, in_words

TAG = "deepspeed"  # folder of DeepSpeed's files inside a checkpoint
WEIGHTS_AND_OPTIMIZER = "model_and_optimizer.pt"
IN_RECORD = ("epochs", "metrics", "best", "samples_seen", "optimizer_steps", "time_to_first_step_seconds")


class CheckpointFailed(RuntimeError):
    """A checkpoint that `checkpoint.required` asks for could not be written."""


class Checkpoints:
    """Writes and reads the checkpoints of a run, as one of its ranks.

    Args:
        run: the rank's `RankRun`.
    """

    def __init__(self, run: Any) -> None:
        self._run, self._settings = run, run.config.checkpoint
        self._saved: tuple[int, bool] | None = None  # newest of this run: step, evaluated
        self._best: float | None = None
        self._last_written = time.monotonic()
        self._known_bytes = 0
        self._data_facts: dict[str, Any] | None = None

    def ask_by_time(self, step: int) -> None:
        """On rank 0, before step `step` + 1: when the minutes are over, ask all ranks to write after that step."""
        minutes = self._settings.every_minutes
        if minutes and self._run.accelerator.is_main_process and time.monotonic() - self._last_written >= minutes * 60:
            rundir.agree_on_step(self._run.run_dir, rundir.CHECKPOINT_AT, step + 1)

    def after_step(self, state: loop.LoopState) -> None:
        """Write when it is time, by steps or by minutes; the same decision on every rank."""
        by_steps = self._settings.every_steps and state.step % self._settings.every_steps == 0
        by_time = self._settings.every_minutes and rundir.agreed_on_step(
            self._run.run_dir, rundir.CHECKPOINT_AT, state.step
        )
        if by_steps or by_time:
            self.save(state)

    def after_epoch(self, state: loop.LoopState, metrics: dict[str, float]) -> None:
        """Write after an epoch and its evaluation, when every epoch or the best one is kept.

        Args:
            state: moved on to the next epoch.
        """
        recipe = self._run.config.recipe
        value = metrics.get(recipe.metric_for_best)
        better = value is not None and (
            self._best is None or (value > self._best if recipe.greater_is_better else value < self._best)
        )
        if better:
            self._best = value
        # A step's checkpoint from before the evaluation is replaced by one that knows the metric.
        if self._settings.every_epoch or (self._settings.keep_best and better) or self._saved == (state.step, False):
            self.save(state, evaluated=True, metric=value)

    def before_stop(self, state: loop.LoopState) -> None:
        """Write where the run was asked to end, unless that step has its checkpoint already."""
        if self._settings.on_preemption and (self._saved is None or self._saved[0] != state.step):
            self.save(state)

    def save(self, state: loop.LoopState, evaluated: bool = False, metric: float | None = None) -> bool:
        """Write a checkpoint; returns whether it is complete. All ranks take part, and learn the same answer.

        Raises:
            CheckpointFailed: where it is not complete, and `checkpoint.required`.
        """
        run = self._run
        began = run.clock.read()
        run.heartbeat.beat(phase="writing a checkpoint")
        with run.clock.phase("checkpoint"):
            error = self._write(state, evaluated, metric)
        seconds = run.clock.read() - began
        run.epoch_began += seconds  # an epoch's training time is without its checkpoints
        self._last_written = time.monotonic()
        run.heartbeat.beat(phase="training")
        if error is None:
            self._saved = (state.step, evaluated)
        if run.accelerator.is_main_process:  # all ranks have acted on it by now
            (run.run_dir / f"{rundir.CHECKPOINT_AT}_{state.step}").unlink(missing_ok=True)
        self._tell(state, evaluated, error, seconds)
        if error is not None and self._settings.required:
            raise CheckpointFailed(f"no checkpoint at step {state.step}: {error}")
        return error is None

    def _write(self, state: loop.LoopState, evaluated: bool, metric: float | None) -> str | None:
        run = self._run
        partial = folders.partial_folder(run.run_dir, state.step, evaluated)
        writer = Writer(partial)
        if run.accelerator.is_main_process:
            writer.error = self._make_room(partial)
        error = self._agree(writer)
        if error is None:
            self._write_states(writer, state)
            error = self._agree(writer)
        files = {name: facts for own in gather_objects(run.accelerator, writer.files) for name, facts in own.items()}
        if run.accelerator.is_main_process and error is None:
            writer.error = self._complete(
                partial, folders.name_of(state.step, evaluated), _manifest(run, state, evaluated, metric, files)
            )
        error = error or self._agree(writer)
        if run.accelerator.is_main_process and error is not None:
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
        return self._known_bytes or _expected_bytes(self._run)

    def _agree(self, writer: Writer) -> str | None:
        """The first failure on any rank, as text; the same on every rank."""
        own = None if writer.error is None else failure_text(writer.error, writer.folder.parent, self.needed_bytes())
        return next((text for text in gather_objects(self._run.accelerator, own) if text is not None), None)

    def _write_states(self, writer: Writer, state: loop.LoopState) -> None:
        run, accelerator = self._run, self._run.accelerator
        shared = {"data": self._data(), "best": self._best}
        writer.save({**_rank_state(run, state), **shared}, f"rank_{accelerator.process_index}.pt")
        engine = getattr(accelerator, "deepspeed_engine_wrapped", None)
        if engine is not None:
            with deepspeed_writes_through(engine.engine, writer):
                engine.engine.save_checkpoint(str(writer.folder), tag=TAG, save_latest=False)
        elif accelerator.is_main_process:
            writer.save(_replicated_state(run), WEIGHTS_AND_OPTIMIZER)

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
        run = self._run
        if run.record is None:
            return
        if error is not None:
            kept = folders.newest(run.run_dir, checksums=False)
            warning = (
                f"no checkpoint at step {state.step}: {error}; "
                + (f"{kept.path.name} is kept" if kept else "there is none so far")
                + ("" if self._settings.required else ", training continues")
            )
            self._warn(warning)
            return
        policy = retention.Policy(
            self._settings.keep_last, self._settings.keep_best, run.config.recipe.greater_is_better
        )
        removed = retention.apply(run.run_dir, policy)
        gone = f"; removed {', '.join(removed)}" if removed else ""
        say(
            f"checkpoint {folders.name_of(state.step, evaluated)}: {in_words(self._known_bytes)} in {seconds:.1f} "
            f"s{gone}"
        )
        run.record.update(artifacts={**run.record.data.get("artifacts", {}), "checkpoints": folders.CHECKPOINTS})

    def _warn(self, text: str) -> None:
        """On rank 0: to the terminal and into the record."""
        say(f"warning: {text}")
        record = self._run.record
        record.update(warnings=[*record.data.get("warnings", []), text])

    def restore(self, state: loop.LoopState) -> bool:
        """Take up the newest checkpoint of the run folder; returns False where there is none.

        The runner has checked its checksums before it started the ranks; after a restart by torch elastic they
        are checked here.

        Raises:
            RankError: when the data is not what the checkpoint was trained on.
        """
        run = self._run
        restarted = rundir.restart_count() > 0
        if run.accelerator.is_main_process and restarted:
            folders.remove_torn(run.run_dir)
        chosen = gather_objects(
            run.accelerator, folders.newest(run.run_dir, restarted) if run.accelerator.is_main_process else None
        )[0]
        if chosen is None:
            if run.record is not None:  # torch elastic may have started the ranks again before a checkpoint was written
                run.record.data.update(epochs=[], metrics={}, best=None, samples_seen=0, optimizer_steps=0)
            return False
        with run.clock.phase("checkpoint"):
            run.heartbeat.beat(phase="loading the checkpoint")
            manifest = read_manifest(chosen.path)
            self._load_states(chosen, manifest)
            own = _read(chosen.path / f"rank_{run.accelerator.process_index % manifest.world_size}.pt")
            first = _read(chosen.path / "rank_0.pt")
        self._take_up(state, own, first)
        self._saved, self._best, self._known_bytes = (manifest.step, manifest.evaluated), first["best"], manifest.bytes
        return True

    def _data(self) -> dict[str, Any]:
        """What the position in the data refers to."""
        if self._data_facts is None:
            self._data_facts = {"rows": len(self._run.train_split), "order": loop.first_order_hash(self._run)}
        return self._data_facts

    def _load_states(self, chosen: Checkpoint, manifest: Manifest) -> None:
        run, accelerator = self._run, self._run.accelerator
        engine = getattr(accelerator, "deepspeed_engine_wrapped", None)
        if engine is None:
            _load_replicated(run, _read(chosen.path / WEIGHTS_AND_OPTIMIZER))
            return
        universal = folders.universal_folder(chosen)
        converted = manifest.world_size != accelerator.num_processes and universal.is_dir()
        # DeepSpeed reads this from its JSON; it holds for this one load, not for the run.
        engine.engine._config.load_universal_checkpoint = converted
        own_settings = [
            {key: value for key, value in group.items() if key not in ("params", "lr")}
            for group in run.prepared.base_optimizer.param_groups
        ]
        path, _ = engine.engine.load_checkpoint(str(universal if converted else chosen.path), tag=TAG)
        engine.engine._config.load_universal_checkpoint = False
        if converted:
            _fix_universal_load(run.prepared.base_optimizer, own_settings)
        if path is None:
            raise RankError(f"DeepSpeed found no checkpoint in {chosen.path}")

    def _take_up(self, state: loop.LoopState, own: dict[str, Any], first: dict[str, Any]) -> None:
        """Loop position, generators, times and the record's epochs."""
        run = self._run
        _check_data(own["data"], self._data())
        for name, value in own["loop"].items():
            setattr(state, name, value)
        if run.accelerator.process_index >= own["world_size"] or run.accelerator.num_processes != own["world_size"]:
            # The sum of all ranks' parts is what counts; with another number of ranks rank 0 carries it.
            state.loss_sum = first["loss_sum_of_all"] if run.accelerator.process_index == 0 else 0.0
        run.times.restore(own["times"])
        for phase, seconds in own["phases"].items():
            run.clock.seconds[phase] += seconds
        run.started -= first["elapsed"]
        if own["scheduler"] is not None and run.prepared.scheduler is not None:
            run.prepared.scheduler.load_state_dict(own["scheduler"])
        if run.record is not None:
            run.record.data.update(json.loads(first["record"]))
            run.record.data["attempts"][-1]["resumed_from_step"] = state.step
            run.record.write()
        restore_generators(own["generators"], run.accelerator.device)


def _check_data(before: dict[str, Any], present: dict[str, Any]) -> None:
    """The position in the data means something only in the same data."""
    if before != present:
        raise RankError(
            f"the training data is not the checkpoint's: it had {before['rows']} rows in the order {before['order']}, "
            f"now there are {present['rows']} in the order {present['order']}; resume with the old data, or start a "
            "new run"
        )


def _read(path: Path) -> Any:
    """A file of ours: tensors and plain values; nothing in it can be executed."""
    return torch.load(path, map_location="cpu", weights_only=True)


def _rank_state(run: Any, state: loop.LoopState) -> dict[str, Any]:
    """What belongs to this rank: position, generators, times; on rank 0 also the record so far."""
    record = run.record.data if run.record is not None else {}
    return {
        "loop": {**vars(state), "loss_sum": float(state.loss_sum), "epoch_seconds": run.clock.read() - run.epoch_began},
        "world_size": run.accelerator.num_processes,
        "generators": generator_states(run.accelerator.device),
        "times": run.times.state(),
        "phases": dict(run.clock.seconds),
        "elapsed": run.elapsed(),
        "scheduler": run.prepared.scheduler.state_dict() if run.prepared.scheduler is not None else None,
        "loss_sum_of_all": sum_over_ranks(run.accelerator, [float(state.loss_sum)])[0],
        "record": json.dumps({name: record.get(name) for name in IN_RECORD}),
    }


def _replicated_state(run: Any) -> dict[str, Any]:
    """DDP: what is the same on every rank."""
    scaler = run.accelerator.scaler
    return {
        "model": run.accelerator.unwrap_model(run.prepared.model).state_dict(),
        "optimizer": run.prepared.base_optimizer.state_dict(),
        "scaler": scaler.state_dict() if scaler is not None else None,
    }


def _load_replicated(run: Any, content: dict[str, Any]) -> None:
    run.accelerator.unwrap_model(run.prepared.model).load_state_dict(content["model"])
    run.prepared.base_optimizer.load_state_dict(content["optimizer"])
    if content["scaler"] is not None and run.accelerator.scaler is not None:
        run.accelerator.scaler.load_state_dict(content["scaler"])


def _fix_universal_load(optimizer: torch.optim.Optimizer, own_settings: list[dict[str, Any]]) -> None:
    """Undo what DeepSpeed 0.19.8 gets wrong for ZeRO-3: it gives every parameter group the first group's settings
    (weight decay on biases), and all states one shared step counter, which then counts once per group and step.
    """
    for group, own in zip(optimizer.param_groups, own_settings, strict=True):
        group.update(own)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()


def _manifest(
    run: Any, state: loop.LoopState, evaluated: bool, metric: float | None, files: dict[str, FileFacts]
) -> Manifest:
    config = run.config
    return Manifest(
        step=state.step,
        epoch=state.epoch,
        window=state.window,
        evaluated=evaluated,
        metric=metric if metric is not None and math.isfinite(metric) else None,
        world_size=run.accelerator.num_processes,
        launcher=config.launcher.name,
        zero_stage=config.zero.stage if config.launcher.name == "deepspeed" else None,
        micro_batch_size=config.train.micro_batch_size,
        gradient_accumulation_steps=config.train.gradient_accumulation_steps,
        config_hash=provenance.config_hash(config),
        written_at=now(),
        versions=provenance.versions(),
        files=files,
    )


def _expected_bytes(run: Any) -> int:
    """What weights and Adam's two moments take at least: 12 bytes a trained parameter in fp32, under ZeRO 14 or 16 with
    its master copy.
    """
    parameters = sum(
        torch.Size(shape).numel() for shape in whole_shapes(run.accelerator.unwrap_model(run.prepared.model)).values()
    )
    if run.config.launcher.name == "ddp" or run.config.zero.stage in (0, 3):
        return 12 * parameters
    return (16 if run.config.precision.name == "fp32" else 14) * parameters
