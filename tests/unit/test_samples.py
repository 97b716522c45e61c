"""The bundled samples: made again byte for byte, right by construction, and read back by their tokenizers."""

import json
import re
from pathlib import Path

import pytest
import yaml

from runner.samples import FOLDER, data_files, tokenizer_folder
from runner.samples.generate import generate
from runner.samples.make_dialogues import CAUSES, PERSONA
from runner.samples.make_paraphrases import CITIES, PEOPLE, THINGS, VERBS

SAMPLES = ("paraphrases", "dialogues", "stories")
TOKENIZERS = {
    "deberta_tiny": ("paraphrases", "sentence1"),
    "blenderbot_tiny": ("dialogues", "labels"),
    "gpt2_tiny": ("stories", "text"),
}
MODEL_CONFIGS = Path(__file__).parents[2] / "conf" / "model"
SENTENCE = re.compile(
    r"(?P<person>\w+) (?P<verb>\w+) the (?P<thing>\w+) in (?P<city>\w+)\."
    r"|The (?P<thing_>\w+) was (?P<verb_>\w+) by (?P<person_>\w+) in (?P<city_>\w+)\."
)


def read(sample: str, split: str) -> list[dict]:
    """Read one split's rows."""
    return [json.loads(line) for line in data_files(sample)[split].read_text("utf-8").splitlines()]


def read_fact(sentence: str) -> tuple[int, int, int, int]:
    """Parse a sentence back into the indices of person, verb, thing and city."""
    match = SENTENCE.fullmatch(sentence)
    assert match, sentence
    words = {name.rstrip("_"): word for name, word in match.groupdict().items() if word}
    (verb,) = [index for index, synonyms in enumerate(VERBS) if words["verb"] in synonyms]
    (thing,) = [index for index, synonyms in enumerate(THINGS) if words["thing"] in synonyms]
    return PEOPLE.index(words["person"]), verb, thing, CITIES.index(words["city"])


def load_tokenizer(folder: Path):
    """Load as the runner does."""
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)


def test_generators_reproduce_every_file(tmp_path: Path) -> None:
    generate(tmp_path)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    shipped = {path.relative_to(FOLDER) for path in FOLDER.rglob("*.json*")}
    assert made == shipped
    changed = [path for path in made if (tmp_path / path).read_bytes() != (FOLDER / path).read_bytes()]
    assert not changed


@pytest.mark.parametrize(
    ("sample", "columns", "counts"),
    [
        ("paraphrases", ["sentence1", "sentence2", "label", "idx"], (4000, 500, 500)),
        ("dialogues", ["texts", "labels"], (3000, 200, 200)),
        ("stories", ["text"], (3165, 385, 385)),
    ],
)
def test_columns_and_row_counts(sample: str, columns: list[str], counts: tuple[int, ...]) -> None:
    splits = [read(sample, split) for split in ("train", "validation", "test")]
    assert tuple(map(len, splits)) == counts
    assert all(list(row) == columns for rows in splits for row in rows)


def test_readme_states_the_row_counts() -> None:
    readme = (FOLDER / "README.md").read_text("utf-8")
    for sample in SAMPLES:
        counts = [len(read(sample, split)) for split in ("train", "validation", "test")]
        assert "{:,} / {} / {}".format(*counts) in readme


@pytest.mark.parametrize(
    ("sample", "text", "target"),
    [
        ("topics", "text", "label"),
        ("labels", "text", "labels"),
        ("values", "sentence1", "score"),
        ("tags", "tokens", "tags"),
    ],
)
def test_task_samples_are_told_apart_and_their_test_rows_have_no_target(sample: str, text: str, target: str) -> None:
    splits = {split: read(sample, split) for split in ("train", "validation", "test")}
    assert [len(rows) for rows in splits.values()] == [1200, 200, 100]
    assert all(list(row) == [text, target] for split in ("train", "validation") for row in splits[split])
    assert all(list(row) == [text] for row in splits["test"])
    texts = [str(row[text]) for rows in splits.values() for row in rows]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_pairs_are_balanced_and_their_labels_right(split: str) -> None:
    rows = read("paraphrases", split)
    assert [row["idx"] for row in rows] == list(range(len(rows)))
    assert sum(row["label"] for row in rows) == len(rows) // 2
    for row in rows:
        first, second = read_fact(row["sentence1"]), read_fact(row["sentence2"])
        equal_slots = sum(a == b for a, b in zip(first, second, strict=True))
        assert equal_slots == (4 if row["label"] else 0)
        passive = [sentence.startswith("The ") for sentence in (row["sentence1"], row["sentence2"])]
        assert sorted(passive) == [False, True]


def test_length_does_not_tell_the_label() -> None:
    words = {0: 0, 1: 0}
    for row in read("paraphrases", "train"):
        words[row["label"]] += len((row["sentence1"] + " " + row["sentence2"]).split())
    assert words[0] == words[1]


def test_no_row_stands_in_two_splits() -> None:
    def keys(sample: str, split: str) -> set:
        rows = read(sample, split)
        if sample == "paraphrases":
            return {frozenset((row["sentence1"], row["sentence2"])) for row in rows}
        if sample == "dialogues":
            return {row["texts"] for row in rows}
        return {row["text"] for row in rows if row["text"] and " = " not in row["text"]}

    for sample in SAMPLES:
        train, validation, test = (keys(sample, split) for split in ("train", "validation", "test"))
        assert not train & validation
        assert not train & test
        assert not validation & test


def test_replies_follow_from_the_texts() -> None:
    causes = {stated: answered for pairs in CAUSES.values() for stated, answered in pairs}
    kinds = {"your persona": 0, "services": 0, "emotion": 0}
    for row in read("dialogues", "validation"):
        context, *turns = row["texts"].split(" </s> <s> ")
        kind = context.split(":")[0]
        kinds[kind] += 1
        if kind == "your persona":
            values = [value for topic in PERSONA.values() for value in topic[0]]
            (stated,) = [value for value in values if re.search(rf"\b{value}\b", row["labels"])]
            assert stated in context
        elif kind == "emotion":
            stated = turns[-1].split(" because ")[1].rstrip(".")
            assert causes[stated] in row["labels"]
    assert min(kinds.values()) >= 30


def test_stories_have_wikitext_rows() -> None:
    texts = [row["text"] for row in read("stories", "train")]
    assert 200_000 < sum(map(len, texts)) < 300_000
    assert texts.count("") > 1000
    headings = [text for text in texts if re.fullmatch(r" = .+ = \n", text)]
    assert len(headings) == len(texts) // 5
    assert all(text == "" or (text[0] == " " and text.endswith(" \n")) for text in texts)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizer_covers_its_sample_and_decodes_it(name: str) -> None:
    sample, column = TOKENIZERS[name]
    tokenizer = load_tokenizer(tokenizer_folder(name))
    for split in ("train", "validation", "test"):
        for text in [row[column] for row in read(sample, split)][:200]:
            ids = tokenizer(text).input_ids
            assert tokenizer.unk_token_id not in ids
            expected = text.lower() if name == "deberta_tiny" else text
            assert tokenizer.decode(ids, skip_special_tokens=True) == expected


def test_deberta_tokenizer_joins_a_pair() -> None:
    tokenizer = load_tokenizer(tokenizer_folder("deberta_tiny"))
    encoded = tokenizer("Anna bought the car in Oslo.", "Unseen")
    assert tokenizer.convert_ids_to_tokens(encoded.input_ids) == [
        *("[CLS]", "anna", "bought", "the", "car", "in", "oslo", ".", "[SEP]"),
        *("u", "##n", "##s", "##e", "##e", "##n", "[SEP]"),
    ]
    assert encoded.token_type_ids == [0] * 9 + [1] * 7
    assert tokenizer.pad_token_id == 0


def test_blenderbot_tokenizer_reads_separators_as_special_tokens() -> None:
    tokenizer = load_tokenizer(tokenizer_folder("blenderbot_tiny"))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("chatbot: Hi! </s> <s> I like red, unheard").input_ids)
    assert tokens == ["chatbot", ":", "Hi", "!", "</s>", "<s>", "I", "like", "red", ",", "<unk>", "</s>"]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    longest = max(len(tokenizer("chatbot: " + row["texts"]).input_ids) for row in read("dialogues", "train"))
    assert longest <= 96


def test_gpt2_tokenizer_keeps_any_text_and_has_no_padding() -> None:
    tokenizer = load_tokenizer(tokenizer_folder("gpt2_tiny"))
    text = ' Senjō no "Valkyria"  3 \n'
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.pad_token is None
    assert tokenizer("<|endoftext|>").input_ids == [tokenizer.eos_token_id]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizer_survives_beside_a_model(name: str, tmp_path: Path) -> None:
    """With config.json beside it, transformers 5 may put the model's own tokenizer class in its place."""
    config = yaml.safe_load((MODEL_CONFIGS / f"{name}.yaml").read_text("utf-8"))["model"]["config"]
    tokenizer = load_tokenizer(tokenizer_folder(name))
    assert config["vocab_size"] == len(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = load_tokenizer(tmp_path)
    sample, column = TOKENIZERS[name]
    for row in read(sample, "validation")[:50]:
        assert again(row[column]) == tokenizer(row[column])
    assert again.special_tokens_map == tokenizer.special_tokens_map


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tiny_model_files_hold_plain_numbers(name: str) -> None:
    """A YAML 1.1 reader takes 1e-3 for text; 1.0e-3 is a number for every reader."""
    settings = yaml.safe_load((MODEL_CONFIGS / f"{name}.yaml").read_text("utf-8"))
    assert isinstance(settings["optimizer"]["lr"], float)
    assert settings["model"]["tokenizer"] == f"bundled:{name}"
