"""Generate plain text in wikitext's rows: a heading row, empty rows, and one row a paragraph.

Each story names a person, an animal, a place and a thing in its heading or first sentence and uses them again
to the end, so that a causal language model gains first from the templates and then from looking back.
"""

import random

Row = dict[str, str]

NAMES = ("Ada", "Bela", "Carl", "Dora", "Emil", "Frida", "Gustav", "Hanna", "Ivan", "Julia")
ANIMALS = ("dog", "cat", "goat", "horse", "goose", "donkey", "parrot", "rabbit")
PLACES = ("forest", "harbour", "market", "valley", "village", "mill", "castle", "island")
THINGS = ("key", "lamp", "map", "coat", "drum", "letter", "rope", "basket")
COLOURS = ("red", "blue", "green", "black", "white", "golden")
SEASONS = ("spring", "summer", "autumn", "winter")
PARTS = ("morning", "afternoon", "evening", "night")

OPENINGS = (
    "In the {season} , {name} lived near the {place} with a {colour} {animal} .",
    "{name} and a {colour} {animal} lived near the {place} , and it was {season} .",
)
LOSSES = (
    "One {part} , {name} lost the {thing} on the way to the {place} .",
    "One {part} the {thing} was gone , and {name} looked for it at the {place} .",
    "Every {part} {name} took the {thing} to the {place} , until it was lost .",
)
SEARCHES = (
    "{name} asked {friend} about the {thing} , but {friend} had not seen it .",
    "{friend} came to help , and {name} and {friend} looked behind every door .",
    "The {animal} ran ahead of {name} , and {friend} ran after the {animal} .",
    "It rained all {part} , and {name} waited with {friend} under a tree .",
    '" Where is the {thing} ? " asked {friend} . " I do not know , " said {name} .',
)
FINDS = (
    "At last the {colour} {animal} found the {thing} in the {place} .",
    "Then {friend} saw the {thing} beside the {colour} {animal} .",
    "In the end the {thing} was under the bed of the {colour} {animal} .",
)
ENDINGS = (
    "{name} thanked {friend} , and they went home from the {place} .",
    "Since that {season} , {name} and {friend} are friends .",
    "{name} gave the {animal} some bread , and {friend} laughed .",
)
CHARACTERS = {"train": 250_000, "validation": 30_000, "test": 30_000}
SEED = 20261103


def draw_words(rng: random.Random) -> dict[str, str]:
    """Choose what one story is about; the friend is not the hero."""
    name, friend = rng.sample(NAMES, 2)
    return {
        "name": name,
        "friend": friend,
        "animal": rng.choice(ANIMALS),
        "place": rng.choice(PLACES),
        "thing": rng.choice(THINGS),
        "colour": rng.choice(COLOURS),
        "season": rng.choice(SEASONS),
        "part": rng.choice(PARTS),
    }


def write_story(rng: random.Random) -> list[str]:
    """Write one story as wikitext rows: empty, heading, empty, two paragraphs."""
    words = draw_words(rng)
    first = [rng.choice(OPENINGS), rng.choice(LOSSES), *rng.sample(SEARCHES, rng.randint(1, 2))]
    second = [*rng.sample(SEARCHES, rng.randint(0, 1)), rng.choice(FINDS), rng.choice(ENDINGS)]
    heading = " = {name} and the {thing} = \n".format(**words)
    paragraphs = [" " + " ".join(part).format(**words) + " \n" for part in (first, second)]
    return ["", heading, "", *paragraphs]


def make_split(characters: int, rng: random.Random, seen: set[str]) -> list[Row]:
    """Write stories until they hold `characters`; no paragraph of at least one is in `seen` (which grows)."""
    rows: list[Row] = []
    written = 0
    while written < characters:
        story = write_story(rng)
        if seen.intersection(story[3:]):
            continue
        seen.update(story[3:])
        rows.extend({"text": text} for text in story)
        written += sum(map(len, story))
    return rows


def make_stories() -> dict[str, list[Row]]:
    """Make all splits, the same on every call; no paragraph stands in two of them, or twice in one."""
    rng = random.Random(SEED)
    seen: set[str] = set()
    return {split: make_split(size, rng, seen) for split, size in CHARACTERS.items()}
