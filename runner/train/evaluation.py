"""Exact evaluation: every row of a split once, whatever the number of ranks and the batch size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runner import rundir
from runner.data.prepared import PreparedSplit
from runner.rundir.heartbeat import Heartbeat
from runner.rundir.record import write_atomically
from runner.train.batching import MicroBatch, evaluation_batches
from runner.train.ranks import gather_objects


@dataclass
class Evaluation:
    """What an evaluation found; on rank 0 with everything, elsewhere with metrics only.

    Attributes:
        metrics: name → value; empty where no row has a reference.
        rows: rows predicted.
        scored: rows with a reference.
    """

    metrics: dict[str, float]
    rows: int
    scored: int


def evaluate(run: Any, split: PreparedSplit, name: str, heartbeat: Heartbeat) -> Evaluation | None:
    """Predict every row, bring the predictions to rank 0 in file order, score them there.

    Per batch only the predictions are kept, on the CPU: memory does not grow with logits.

    Args:
        run: the rank's `RankRun` (recipe, tokenizer, accelerator, model).
        name: the split's name; predictions go to predictions/NAME.jsonl.

    Returns:
        None, on every rank, where the run was asked to stop before all was predicted.
    """
    accelerator, config = run.accelerator, run.config
    batches = evaluation_batches(
        split.lengths, config.train.eval_micro_batch_size, accelerator.process_index, accelerator.num_processes
    )
    model = run.prepared.model
    model.eval()
    own: list[tuple[int, Any]] = []
    stopped = False
    with torch.no_grad():
        for index, batch in enumerate(batches):
            stopped = rundir.evaluation_stopped(run.run_dir, index, accelerator.is_main_process)
            if stopped:
                break
            heartbeat.beat(phase=f"evaluating {name}", done=index, of=len(batches))
            predicted = _predict(run, split, batch)
            if batch.counted:
                own += zip(batch.rows, predicted, strict=True)
    model.train()
    if any(gather_objects(accelerator, stopped)):
        return None
    everyone = gather_objects(accelerator, own)
    result = _score(run, split, name, everyone) if accelerator.is_main_process else None
    return next(item for item in gather_objects(accelerator, result) if item is not None)


def _predict(run: Any, split: PreparedSplit, batch: MicroBatch) -> list[Any]:
    """Predictions of one micro batch."""
    config = run.config
    synced = config.launcher.name == "deepspeed" and config.zero.stage == 3 and run.accelerator.num_processes > 1
    tensors = run.to_device(run.recipe.collate(split.rows(batch.rows), run.tokenizer))
    predictions: list[Any] = run.recipe.predict(run.prepared.model, tensors, run.tokenizer, synced)
    return predictions


def try_longest_batch(run: Any, split: PreparedSplit, name: str) -> None:
    """Predict the batch that needs most memory and forget the result: what cannot be evaluated fails now, not after
    hours.
    """
    batch = evaluation_batches(
        split.lengths,
        run.config.train.eval_micro_batch_size,
        run.accelerator.process_index,
        run.accelerator.num_processes,
    )[0]
    run.heartbeat.beat(phase=f"trying to evaluate {name}")
    run.prepared.model.eval()
    with torch.no_grad():
        _predict(run, split, batch)
    run.prepared.model.train()
    print(
        f"tried the longest evaluation batch of {name}: {len(batch.rows)} rows of up to "
        f"{int(split.lengths[batch.rows].max())} tokens",
        flush=True,
    )


def _score(run: Any, split: PreparedSplit, name: str, everyone: list[list[tuple[int, Any]]]) -> Evaluation:
    by_row = dict(pair for own in everyone for pair in own)
    if len(by_row) != len(split) or sum(map(len, everyone)) != len(split):
        raise RuntimeError(
            f"{len(by_row)} different rows of {len(split)} were predicted, {sum(map(len, everyone))} in all"
        )
    predictions = [by_row[index] for index in range(len(split))]
    references = split.column("reference")
    pairs = (
        [(p, r) for p, r in zip(predictions, references, strict=True) if r is not None]
        if references
        else [(p, None) for p in predictions]
    )
    metrics = run.recipe.score([p for p, _ in pairs], [r for _, r in pairs]) if pairs else {}
    _write_predictions(
        run.run_dir / "predictions" / f"{name}.jsonl",
        run.recipe.samples(predictions),
        _readable(run.recipe, references),
        split.column("text"),
    )
    return Evaluation(
        metrics={key: float(value) for key, value in metrics.items()}, rows=len(predictions), scored=len(pairs)
    )


def _readable(recipe: Any, references: list[Any]) -> list[Any]:
    """Class ids as the names that predictions are written with; other references as they are."""
    if recipe.label_column is None:
        return references
    return [None if reference is None else recipe.samples([reference])[0] for reference in references]


def _write_predictions(path: Path, predictions: list[Any], references: list[Any], texts: list[Any]) -> None:
    """One object a row, in file order, with the row's number."""
    lines = []
    for index, prediction in enumerate(predictions):
        line = {"row": index, "prediction": prediction}
        if references:
            line["reference"] = references[index]
        if texts:
            line["text"] = texts[index]
        lines.append(json.dumps(line, ensure_ascii=False))
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, "\n".join(lines) + "\n")
