"""Exact evaluation: every row of a split once, whatever the number of ranks and the batch size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runner import rundir
from runner.data.prepared import PreparedSplit
from runner.recipe import Batch, Recipe
from runner.rundir.record import write_atomically
from runner.train.ahead import Ahead
from runner.train.batching import MicroBatch, evaluation_batches
from runner.train.context import RankContext
from runner.train.honesty import class_facts


@dataclass
class Evaluation:
    """What an evaluation found; on rank 0 with everything, elsewhere with metrics only.

    Attributes:
        metrics: name → value; empty where no row has a reference.
        rows: rows predicted.
        scored: rows with a reference.
        classes: see `honesty.class_facts`.
        confusion: see `Recipe.confusion`.
    """

    metrics: dict[str, float]
    rows: int
    scored: int
    classes: dict[str, Any] | None = None
    confusion: dict[str, Any] | None = None


def evaluate(context: RankContext, name: str) -> Evaluation | None:
    """Predict every row, bring the predictions to rank 0 in file order, score them there.

    Per batch only the predictions are kept, on the CPU: memory does not grow with logits.

    Args:
        name: of an evaluated split; predictions go to predictions/NAME.jsonl.

    Returns:
        None, on every rank, where the run was asked to stop before all was predicted.
    """
    place, split = context.place, context.task.evaluated[name]
    batches = _batches(context, split)
    model = context.prepared.model
    model.eval()
    own: list[tuple[int, Any]] = []
    stopped = False
    ahead = _ahead(context, split, batches)
    with torch.no_grad():
        for index, batch in enumerate(batches):
            stopped = rundir.evaluation_stopped(context.output.folder, index, place.is_main)
            if stopped:
                break
            context.output.heartbeat.beat(phase=f"evaluating {name}", done=index, of=len(batches))
            predicted = _predict(context, ahead[index])
            if batch.counted:
                own += zip(batch.rows, predicted, strict=True)
    model.train()
    if any(place.gather(stopped)):
        return None
    everyone = place.gather(own if place.speaks_for_replica else [])
    result = _score(context, split, name, everyone) if place.is_main else None
    return place.from_main(result)


def _batches(context: RankContext, split: PreparedSplit) -> list[MicroBatch]:
    place = context.place
    return evaluation_batches(
        split.lengths,
        context.config.train.eval_micro_batch_size,
        place.data_parallel_rank,
        place.data_parallel_size,
    )


def _ahead(context: RankContext, split: PreparedSplit, batches: list[MicroBatch]) -> Ahead:
    """The batches, collated while the device works on those before."""
    on_gpu, count = context.place.device.type == "cuda", context.config.train.number_of_batches_ahead
    return Ahead(lambda index: context.task.collated(split, batches[index].rows), len(batches), count, on_gpu)


def _predict(context: RankContext, collated: Batch) -> list[Any]:
    """Predictions of one micro batch."""
    task = context.task
    tensors = {name: tensor.to(context.place.device, non_blocking=True) for name, tensor in collated.items()}
    synced = context.engine.forward_is_collective
    return task.recipe.predict(context.prepared.model, tensors, task.tokenizer, synced)


def try_longest_batch(context: RankContext, name: str) -> None:
    """Predict the batch that needs most memory and forget the result: what cannot be evaluated fails now, not after
    hours.
    """
    split = context.task.evaluated[name]
    batch = _batches(context, split)[0]
    context.output.heartbeat.beat(phase=f"trying to evaluate {name}")
    context.prepared.model.eval()
    with torch.no_grad():
        _predict(context, context.task.collated(split, batch.rows))
    context.prepared.model.train()
    print(
        f"tried the longest evaluation batch of {name}: {len(batch.rows)} rows of up to "
        f"{int(split.lengths[batch.rows].max())} tokens",
        flush=True,
    )


def _score(context: RankContext, split: PreparedSplit, name: str, everyone: list[list[tuple[int, Any]]]) -> Evaluation:
    recipe = context.task.recipe
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
    scored, true = [p for p, _ in pairs], [r for _, r in pairs]
    metrics = recipe.score(scored, true) if pairs else {}
    _write_predictions(
        context.output.folder / "predictions" / f"{name}.jsonl",
        recipe.samples(predictions),
        _readable(recipe, references),
        split.column("text"),
    )
    return Evaluation(
        metrics={key: float(value) for key, value in metrics.items()},
        rows=len(predictions),
        scored=len(pairs),
        classes=class_facts(recipe, scored, true) if references else None,
        confusion=recipe.confusion(scored, true) if references and pairs else None,
    )


def _readable(recipe: Recipe, references: list[Any]) -> list[Any]:
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
