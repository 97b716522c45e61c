"""Generate sentence pairs in MRPC's columns: the same facts told twice, or two different facts.

A fact has four slots: who, did what, to which thing, where. One sentence of a pair is active, the
other passive, and each draws its synonyms freely, so the words alone do not tell the label:

    label 1   Anna bought the car in Paris.   The automobile was purchased by Anna in Paris.
    label 0   Anna bought the car in Paris.   The couch was fixed by Felix in Oslo.

In a pair with label 0 all four slots differ. Pairs are unique over all splits; facts are not.
"""

import random
from typing import NamedTuple

PEOPLE = ("Anna", "Boris", "Clara", "David", "Elena", "Felix")
CITIES = ("Lisbon", "London", "Madrid", "Oslo", "Paris", "Vienna")
# Every verb's past tense is also its participle, so that one form serves active and passive.
VERBS = (
    ("bought", "purchased"),
    ("built", "constructed"),
    ("found", "discovered"),
    ("fixed", "repaired"),
)
THINGS = (
    ("bike", "bicycle"),
    ("boat", "ship"),
    ("car", "automobile"),
    ("couch", "sofa"),
    ("phone", "telephone"),
    ("shop", "store"),
)
ROWS = {"train": 4000, "validation": 500, "test": 500}
SEED = 20261101


class Fact(NamedTuple):
    """One index for each slot; the words are chosen only when a sentence is written."""

    person: int
    verb: int
    thing: int
    city: int


SLOT_SIZES = Fact(len(PEOPLE), len(VERBS), len(THINGS), len(CITIES))


def draw_fact(rng: random.Random) -> Fact:
    """Draw one of the 864 facts."""
    return Fact(*(rng.randrange(size) for size in SLOT_SIZES))


def draw_other_fact(fact: Fact, rng: random.Random) -> Fact:
    """Draw a fact that differs from `fact` in all four slots."""
    return Fact(*((value + rng.randrange(1, size)) % size for value, size in zip(fact, SLOT_SIZES, strict=True)))


def write_sentence(fact: Fact, passive: bool, rng: random.Random) -> str:
    """Tell `fact` in the active or the passive, with synonyms drawn freely."""
    person, city = PEOPLE[fact.person], CITIES[fact.city]
    verb, thing = rng.choice(VERBS[fact.verb]), rng.choice(THINGS[fact.thing])
    if passive:
        return f"The {thing} was {verb} by {person} in {city}."
    return f"{person} {verb} the {thing} in {city}."


def draw_pair(label: int, rng: random.Random) -> tuple[str, str]:
    """Write two sentences, one active and one passive, in either order."""
    first = draw_fact(rng)
    second = first if label else draw_other_fact(first, rng)
    passive_first = rng.random() < 0.5
    return (
        write_sentence(first, passive_first, rng),
        write_sentence(second, not passive_first, rng),
    )


def make_split(rows: int, rng: random.Random, seen: set[frozenset[str]]) -> list[dict[str, str | int]]:
    """Make `rows` pairs, half of each label in random order, none of them in `seen` (which grows)."""
    labels = [0, 1] * (rows // 2)
    rng.shuffle(labels)
    made: list[dict[str, str | int]] = []
    for idx, label in enumerate(labels):
        pair = draw_pair(label, rng)
        while frozenset(pair) in seen:
            pair = draw_pair(label, rng)
        seen.add(frozenset(pair))
        made.append({"sentence1": pair[0], "sentence2": pair[1], "label": label, "idx": idx})
    return made


def make_paraphrases() -> dict[str, list[dict[str, str | int]]]:
    """Make all splits, the same on every call."""
    rng = random.Random(SEED)
    seen: set[frozenset[str]] = set()
    return {split: make_split(rows, rng, seen) for split, rows in ROWS.items()}
