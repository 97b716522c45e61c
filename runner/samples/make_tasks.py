"""Generate small data sets for the other tasks on encoders, out of the facts of the paraphrases.

They use the words of `make_paraphrases`, so that its tokenizer reads them.
"""

import random
from itertools import islice
from typing import Any

from runner.samples.make_paraphrases import CITIES, PEOPLE, THINGS, VERBS, Fact, draw_fact, write_sentence

Rows = list[dict[str, Any]]
TOPICS = ("trade", "work", "find", "repair")  # by verb
KINDS = ("vehicle", "vehicle", "vehicle", "furniture", "device", "building")  # by thing
NORTHERN = ("London", "Oslo")
VERB_WEIGHTS = (4, 2, 1, 1)  # of the topics: an imbalanced data set
SIZES = {"train": 1200, "validation": 200, "test": 100}
SEED = 20261201


def topic_row(rng: random.Random) -> dict[str, Any]:
    """A sentence, and what was done in it, as one of four classes."""
    verb = rng.choices(range(len(VERBS)), VERB_WEIGHTS)[0]
    drawn = draw_fact(rng)
    fact = Fact(drawn.person, verb, drawn.thing, drawn.city)
    return {"text": write_sentence(fact, rng.random() < 0.5, rng), "label": TOPICS[verb]}


def labels_row(rng: random.Random) -> dict[str, Any]:
    """A sentence and all that it is about: a kind of thing, whether money was paid, whether it was in the north."""
    fact = draw_fact(rng)
    labels = [KINDS[fact.thing], *["trade"] * (fact.verb == 0), *["north"] * (CITIES[fact.city] in NORTHERN)]
    return {"text": write_sentence(fact, rng.random() < 0.5, rng), "labels": labels}


def value_row(rng: random.Random) -> dict[str, Any]:
    """A sentence, and a score from 0 to 5: the worth of its thing, more in some cities."""
    fact = draw_fact(rng)
    score = 0.5 * fact.thing + 0.5 * fact.city
    return {"sentence1": write_sentence(fact, rng.random() < 0.5, rng), "score": score}


def tags_row(rng: random.Random) -> dict[str, Any]:
    """The words of a sentence; tagged are the person, the city, and the thing with its article."""
    words = write_sentence(draw_fact(rng), rng.random() < 0.5, rng).replace(".", " .").split()
    things = {word for pair in THINGS for word in pair}
    tags = []
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        tags.append(
            "B-person"
            if word in PEOPLE
            else "B-city"
            if word in CITIES
            else "I-thing"
            if word in things
            else "B-thing"
            if following in things
            else "O"
        )
    return {"tokens": words, "tags": tags}


MAKERS = {"topics": topic_row, "labels": labels_row, "values": value_row, "tags": tags_row}
TARGETS = {"topics": "label", "labels": "labels", "values": "score", "tags": "tags"}


def make_tasks() -> dict[str, dict[str, Rows]]:
    """Sample → split → rows, the same on every call. Test rows have no target: they are there to be predicted."""
    made: dict[str, dict[str, Rows]] = {}
    for name, maker in MAKERS.items():
        rng = random.Random(f"{SEED} {name}")
        drawn: dict[str, dict[str, Any]] = {}
        while len(drawn) < sum(SIZES.values()):  # no row stands twice, or in two splits
            row = maker(rng)
            drawn.setdefault(str({key: value for key, value in row.items() if key != TARGETS[name]}), row)
        rows = iter(drawn.values())
        made[name] = {split: list(islice(rows, size)) for split, size in SIZES.items()}
        for row in made[name]["test"]:
            del row[TARGETS[name]]
    return made
