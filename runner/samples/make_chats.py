"""Generate conversations in the `messages` layout: a user tells of a thing of theirs and asks about it later.

Some answers are facts that stand in every conversation (what an animal eats), some must be looked up in an
earlier turn (the colour of the user's coat). A third of the conversations begin with a system prompt.
"""

import random

Message = dict[str, str]
Row = dict[str, list[Message]]

NAMES = ("Ada", "Bela", "Carl", "Dora", "Emil", "Frida", "Gustav", "Hanna")
THINGS = ("coat", "lamp", "drum", "rope", "basket", "boat")
COLOURS = ("red", "blue", "green", "black", "white")
FOOD = {"goat": "grass", "cat": "fish", "parrot": "seeds", "rabbit": "carrots", "bear": "honey", "goose": "oats"}
SYSTEM = "You are a helpful friend. Answer in one sentence."
ROWS = {"train": 600, "validation": 80, "test": 80}
SEED = 20261130


def introduction(words: dict[str, str]) -> tuple[str, str]:
    """The user's first turn and its answer."""
    return "I am {name} and I have a {colour} {thing}.".format(**words), "Hello {name}, nice to meet you.".format(
        **words
    )


def questions(words: dict[str, str]) -> list[tuple[str, str]]:
    """What the user may ask afterwards, and the answers."""
    return [
        ("What colour is my {thing}?".format(**words), "Your {thing} is {colour}.".format(**words)),
        ("What is my name?", "Your name is {name}.".format(**words)),
        ("What does a {animal} eat?".format(**words), "A {animal} eats {food}.".format(**words)),
    ]


def make_conversation(rng: random.Random) -> list[Message]:
    """One conversation of one to three answers."""
    animal = rng.choice(list(FOOD))
    words = {
        "name": rng.choice(NAMES),
        "thing": rng.choice(THINGS),
        "colour": rng.choice(COLOURS),
        "animal": animal,
        "food": FOOD[animal],
    }
    pairs = [introduction(words), *rng.sample(questions(words), rng.randint(0, 2))]
    turns = [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    return ([{"role": "system", "content": SYSTEM}] if rng.random() < 1 / 3 else []) + turns


def make_chats() -> dict[str, list[Row]]:
    """Make all splits, the same on every call; no conversation stands in two of them, or twice in one."""
    rng = random.Random(SEED)
    seen: set[str] = set()
    splits: dict[str, list[Row]] = {}
    for split, size in ROWS.items():
        rows = splits.setdefault(split, [])
        while len(rows) < size:
            messages = make_conversation(rng)
            if str(messages) not in seen:
                seen.add(str(messages))
                rows.append({"messages": messages})
    return splits
