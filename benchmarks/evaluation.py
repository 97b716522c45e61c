"""Evaluation by generation: the same trained model, the same dialogues, the same beams."""

from __future__ import annotations

import json

from benchmarks.measure import Bench, launch_command, runner_command, typed
from benchmarks.result import Figure
from benchmarks.workload import dialogues

ROUNDS = 2
ROWS, QUICK_ROWS = 1000, 100


def evaluation(bench: Bench) -> list[Figure]:
    """Seconds to answer and score dialogues."""
    path = dialogues(bench, QUICK_ROWS if bench.quick else ROWS)
    settings = {
        "max_source_length": 96,
        "max_target_length": 32,
        "num_beams": 3,
        "min_length": 0,
        "max_length": 32,
        "no_repeat_ngram_size": 3,
        "repetition_penalty": 1.2,
    }
    model = bench.work / "models" / "blenderbot_trained"
    if not (model / "model.safetensors").exists():
        bench.runner(
            "recipe=blenderbot_mudoconv",
            "model=blenderbot_tiny",
            "train.evaluate_every_epoch=false",
            f"dataset.max_validation_rows={QUICK_ROWS}",
        )
        newest = max((bench.work / "runs").glob("*/model"), key=lambda folder: folder.stat().st_mtime)
        model.parent.mkdir(exist_ok=True)
        newest.rename(model)
    ours = [
        "mode=evaluate",
        "recipe=blenderbot_mudoconv",
        "model=blenderbot_tiny",
        f"model.path={model}",
        "model.init=pretrained",
        "model.tokenizer=null",
        "dataset=files",
        f"dataset.validation={path}",
        f"launcher.omp_num_threads={bench.threads}",
        *(f"task.{name}={value}" for name, value in settings.items()),
    ]
    theirs = [
        "--model",
        str(model),
        "--validation_file",
        str(path),
        *(part for name, value in settings.items() for part in (f"--{name}", str(value))),
    ]
    seconds, bleu, equal = ([], []), ([], []), []
    for _ in range(bench.rounds(ROUNDS)):
        _, figures = bench.launch("seq2seq.py", *theirs)
        _, record = bench.runner(*ours)
        found = record["evaluations"]["validation"]
        seconds[0].append(found["eval_seconds"])
        seconds[1].append(figures["eval_seconds"])
        bleu[0].append(found["metrics"]["bleu"])
        bleu[1].append(figures["metrics"]["bleu"])
        equal.append(_equal_answers(bench, figures["predictions"]))
    rows = figures["metrics"]["rows"]
    commands = [
        typed(runner_command(*ours)),
        typed(["DS_ACCELERATOR=cpu", *launch_command(bench.ranks), "benchmarks/baseline/seq2seq.py", *theirs]),
    ]
    rates = [[rows / value for value in values] for values in seconds]
    return [
        Figure(
            "generation",
            f"seq2seq evaluation: {rows} dialogues, {settings['num_beams']} beams, tiny Blenderbot, 2 ranks",
            "samples/s",
            *rates,
            1.5,
            more_is_better=True,
            part="evaluation",
            commands=commands,
            notes=[
                f"BLEU: runner {bleu[0][0]:.2f}, baseline {bleu[1][0]:.2f}; {min(equal)} of {rows} answers are "
                "the same text."
            ],
        ),
        Figure("bleu", "BLEU of that evaluation", "", *bleu, part="evaluation"),
    ]


def _equal_answers(bench: Bench, predictions: list[str]) -> int:
    newest = max((bench.work / "runs").glob("*/predictions/validation.jsonl"), key=lambda path: path.stat().st_mtime)
    ours = [json.loads(line)["prediction"] for line in newest.read_text().splitlines()]
    return sum(own == other for own, other in zip(ours, predictions, strict=True))
