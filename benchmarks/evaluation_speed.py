"""Generation time of the dialogue recipe's evaluation, against the same rows unsorted and padded to the maximum.

    python benchmarks/evaluation_speed.py [MODEL_DIR]

One process, one thread, 200 rows of the bundled sample, 10 beams. MODEL_DIR: the `model/` of a trained
`recipe=blenderbot_mudoconv model=blenderbot_tiny` run; without it weights are random and replies run to their end.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from runner import paths
from runner.compose import compose_run
from runner.recipe import load_recipe
from runner.train import assets

BATCH = 20
POSITIONS = 128


def main() -> None:
    torch.set_num_threads(1)
    weights = (
        ["model.init=pretrained", f"model.path={sys.argv[1]}", "model.tokenizer=null"] if len(sys.argv) > 1 else []
    )
    lines = (paths.samples_dir() / "dialogues/validation.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for early in ("false", "true"):
        overrides = [
            "recipe=blenderbot_mudoconv",
            "model=blenderbot_tiny",
            "task.num_beams=10",
            f"task.early_stopping={early}",
            *weights,
        ]
        recipe = load_recipe(compose_run(overrides).config)
        tokenizer = assets.build_tokenizer(recipe.config)
        model = assets.build_model(recipe, tokenizer)[0].eval()
        made = recipe.features({name: [row[name] for row in rows] for name in ("texts", "labels")}, tokenizer)
        features = [{name: values[index] for name, values in made.items()} for index in range(len(rows))]
        for padded in (False, True):
            seconds, replies = measure(recipe, model, tokenizer, features, padded)
            score = recipe.score(replies, made["reference"])["bleu"]
            print(
                f"early_stopping={early:<5} {'unsorted, padded to 128' if padded else 'as the runner does it':<24} "
                f"{seconds:6.2f} s   BLEU {score:.2f}"
            )


def measure(
    recipe: Any, model: Any, tokenizer: Any, features: list[dict[str, Any]], padded: bool
) -> tuple[float, list[str]]:
    """Seconds to generate all replies, and the replies in row order."""
    order = (
        list(range(len(features)))
        if padded
        else sorted(range(len(features)), key=lambda index: -recipe.length(features[index]))
    )
    replies: dict[int, str] = {}
    began = time.perf_counter()
    with torch.no_grad():
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            batch = recipe.collate([features[index] for index in rows], tokenizer)
            if padded:
                width = (0, POSITIONS - batch["input_ids"].shape[1])
                batch["input_ids"] = torch.nn.functional.pad(batch["input_ids"], width, value=tokenizer.pad_token_id)
                batch["attention_mask"] = torch.nn.functional.pad(batch["attention_mask"], width)
            replies.update(zip(rows, recipe.predict(model, batch, tokenizer, synced=False), strict=True))
    return time.perf_counter() - began, [replies[index] for index in range(len(features))]


if __name__ == "__main__":
    main()
