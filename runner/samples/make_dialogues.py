"""Generate dialogues in MuDoConv's columns: `texts` (context and turns so far) and `labels` (the reply).

Three kinds, one third each, all with template replies that follow from the text:

    persona     three facts about the speaker, then a question about one of them
    restaurant  a booking in two or three turns
    emotions    someone tells how they feel and why

The context and the turns are joined by ` </s> <s> `, as in MuDoConv.
"""

import random
from collections.abc import Callable

Row = dict[str, str]

SEPARATOR = " </s> <s> "
ROWS = {"train": 3000, "validation": 200, "test": 200}
SEED = 20261102

GREETINGS = ("Hi!", "Hello!", "Hello there!", "Good morning!")

# topic: (values, the persona line, the question, the reply)
PERSONA = {
    "animal": (
        ("dog", "cat", "parrot", "horse", "rabbit"),
        "I have a {}.",
        ("Do you have any pets?", "What animals do you keep?"),
        "Yes, I have a {} and I love it.",
    ),
    "job": (
        ("teacher", "nurse", "baker", "farmer", "pilot"),
        "I work as a {}.",
        ("What do you do for a living?", "Where do you work?"),
        "I work as a {} and I enjoy it a lot.",
    ),
    "hobby": (
        ("chess", "football", "tennis", "the guitar", "the piano"),
        "I play {}.",
        ("What do you do for fun?", "Do you have a hobby?"),
        "In my free time I like to play {} with my friends.",
    ),
    "food": (
        ("pizza", "sushi", "soup", "curry", "pasta"),
        "I eat {} every week.",
        ("What is your favorite food?", "What do you like to eat?"),
        "My favorite food is {}, I could eat it every day.",
    ),
    "color": (
        ("red", "blue", "green", "yellow", "black"),
        "I wear {} clothes.",
        ("What is your favorite color?", "Which color do you like?"),
        "I like {} best, most of my clothes have that color.",
    ),
}

CUISINES = ("italian", "indian", "chinese", "french", "mexican")
CITIES = ("Boston", "Chicago", "Denver", "Seattle", "Austin")
NUMBERS = ("two", "three", "four", "five", "six")
TIMES = ("noon", "six", "seven", "eight", "nine")

# feeling: (how it is told, the reply)
FEELINGS = {
    "sad": (
        "I feel {degree} sad {when} because {cause}.",
        "I am so sorry to hear that {}. Do you want to talk about it?",
    ),
    "worried": (
        "I am {degree} worried {when} because {cause}.",
        "It is normal to be worried when {}. What could help you right now?",
    ),
    "angry": (
        "I am {degree} angry {when} because {cause}.",
        "I understand why you are angry. Did you tell anyone that {}?",
    ),
    "happy": ("I am {degree} happy {when} because {cause}.", "That is wonderful! I am glad to hear that {}."),
}
# the cause as the speaker tells it, and as the reply gives it back
CAUSES = {
    "sad": (
        ("my dog is sick", "your dog is sick"),
        ("my friend moved away", "your friend moved away"),
        ("I lost my ring", "you lost your ring"),
        ("I miss my family", "you miss your family"),
    ),
    "worried": (
        ("I have an exam tomorrow", "you have an exam tomorrow"),
        ("my car is broken", "your car is broken"),
        ("I cannot sleep at night", "you cannot sleep at night"),
        ("my rent is too high", "your rent is too high"),
    ),
    "angry": (
        ("my boss is unfair", "your boss is unfair"),
        ("my neighbor is too loud", "your neighbor is too loud"),
        ("my brother broke my phone", "your brother broke your phone"),
        ("the train was late again", "the train was late again"),
    ),
    "happy": (
        ("I got a new job", "you got a new job"),
        ("I passed my exam", "you passed your exam"),
        ("my sister is getting married", "your sister is getting married"),
        ("we are going on a trip", "you are going on a trip"),
    ),
}
DEGREES = ("a bit", "very", "so", "really")
MOMENTS = ("today", "tonight", "this week", "these days")
OPENINGS = ("How are you today?", "How was your day?", "What is on your mind?", "How do you feel?")


def draw_persona(rng: random.Random) -> Row:
    """Three persona lines in random order, a greeting, and a question about one of the three."""
    topics = rng.sample(sorted(PERSONA), 3)
    facts = {topic: rng.choice(PERSONA[topic][0]) for topic in topics}
    persona = " ".join("your persona: " + PERSONA[topic][1].format(facts[topic]) for topic in topics)
    asked = rng.choice(topics)
    _, _, questions, reply = PERSONA[asked]
    turn = f"{rng.choice(GREETINGS)} {rng.choice(questions)}"
    return {"texts": persona + SEPARATOR + turn, "labels": reply.format(facts[asked])}


def draw_restaurant(rng: random.Random) -> Row:
    """A booking that stops before one of the system's three replies."""
    cuisine, city = rng.choice(CUISINES), rng.choice(CITIES)
    number, time = rng.choice(NUMBERS), rng.choice(TIMES)
    turns = [
        f"{rng.choice(GREETINGS)} I am looking for a place to eat.",
        "What kind of food do you want, and in which city?",
        f"Some {cuisine} food in {city}, please.",
        f"I found a good {cuisine} restaurant in {city}. Shall I book a table?",
        f"Yes, for {number} people at {time}.",
        f"Your table for {number} people at {time} is booked. Enjoy your meal!",
    ]
    # The first reply has few distinct texts, so it is asked for less often.
    reply = rng.choices((1, 3, 5), weights=(1, 6, 13))[0]
    return {"texts": SEPARATOR.join(["services: restaurants", *turns[:reply]]), "labels": turns[reply]}


def draw_emotion(rng: random.Random) -> Row:
    """Someone tells a feeling and its cause; the reply names the cause again."""
    feeling = rng.choice(sorted(FEELINGS))
    told, answered = rng.choice(CAUSES[feeling])
    statement, reply = FEELINGS[feeling]
    turns = [
        f"{rng.choice(GREETINGS)} {rng.choice(OPENINGS)}",
        statement.format(degree=rng.choice(DEGREES), when=rng.choice(MOMENTS), cause=told),
    ]
    return {"texts": SEPARATOR.join(["emotion: " + feeling, *turns]), "labels": reply.format(answered)}


KINDS: tuple[Callable[[random.Random], Row], ...] = (draw_persona, draw_restaurant, draw_emotion)


def draw_row(rng: random.Random) -> Row:
    """Draw one dialogue of any kind."""
    return rng.choice(KINDS)(rng)


def make_split(rows: int, rng: random.Random, excluded: set[str]) -> list[Row]:
    """Make `rows` dialogues whose texts are not in `excluded` (texts may repeat within the split)."""
    made: list[Row] = []
    while len(made) < rows:
        row = draw_row(rng)
        if row["texts"] not in excluded:
            made.append(row)
    return made


def make_dialogues() -> dict[str, list[Row]]:
    """Make all splits, the same on every call; no text stands in two of them."""
    rng = random.Random(SEED)
    excluded: set[str] = set()
    splits: dict[str, list[Row]] = {}
    for split, rows in ROWS.items():
        splits[split] = make_split(rows, rng, excluded)
        excluded |= {row["texts"] for row in splits[split]}
    return splits
