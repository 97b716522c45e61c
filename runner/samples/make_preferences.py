"""Generate preferences between two answers, out of the conversations of `make_chats`: the right one and a wrong one."""

import random
from typing import Any

from runner.samples.make_chats import COLOURS, FOOD, THINGS

SIZES = {"train": 200, "validation": 40, "test": 40}
SEED = 20261202


def preference_row(rng: random.Random) -> dict[str, Any]:
    """A question; the chosen answer is right and polite, the rejected one tells of something else."""
    animal, thing, colour = rng.choice(list(FOOD)), rng.choice(THINGS), rng.choice(COLOURS)
    if rng.random() < 0.5:
        question, chosen = f"What does a {animal} eat?", f"A {animal} eats {FOOD[animal]}."
    else:
        question, chosen = f"I have a {colour} {thing}. What colour is my {thing}?", f"Your {thing} is {colour}."
    name = rng.choice(("Ada", "Bela", "Carl", "Dora", "Emil", "Frida", "Gustav", "Hanna"))
    return {
        "prompt": [{"role": "user", "content": f"I am {name}. {question}"}],
        "chosen": [{"role": "assistant", "content": chosen}],
        "rejected": [{"role": "assistant", "content": f"Hello {name}, nice to meet you."}],
    }


def make_preferences() -> dict[str, list[dict[str, Any]]]:
    """Make all splits, the same on every call; no prompt stands twice."""
    rng = random.Random(SEED)
    drawn: dict[str, dict[str, Any]] = {}
    while len(drawn) < sum(SIZES.values()):
        row = preference_row(rng)
        drawn.setdefault(row["prompt"][0]["content"], row)
    rows = list(drawn.values())
    starts = {"train": 0, "validation": SIZES["train"], "test": SIZES["train"] + SIZES["validation"]}
    rng.shuffle(rows)
    return {split: rows[start : start + SIZES[split]] for split, start in starts.items()}
