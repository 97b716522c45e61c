"""The two text recipes without a model: blocks, labels, options, metrics, lengths."""

from __future__ import annotations

import math
from typing import Any

import pytest

from runner import metrics
from runner.compose import compose_run
from runner.config.schema import RunConfig
from runner.config.sequence_limits import position_limit
from runner.errors import RequestError
from runner.preflight.check import check
from runner.recipe import load_recipe

DIALOGUES = ("recipe=blenderbot_mudoconv", "model=blenderbot_tiny")
TEXT = ("recipe=gpt2_wikitext", "model=gpt2_tiny")


class Characters:
    """One token a character; 0 ends a target."""

    def __call__(
        self, texts: list[str] | None = None, text_target: list[str] | None = None, **options: Any
    ) -> dict[str, list[list[int]]]:
        if text_target is not None:
            return {"input_ids": [[*map(ord, text), 0] for text in text_target]}
        assert options.get("truncation") is False
        return {"input_ids": [list(map(ord, text)) for text in texts or []]}


def composed(*overrides: str) -> RunConfig:
    return compose_run(list(overrides)).config


def problems(*overrides: str) -> list[str]:
    with pytest.raises(RequestError) as caught:
        check(compose_run(list(overrides)), starting=False)
    return [problem.line() for problem in caught.value.problems]


def test_blocks_lose_no_token_but_the_tail() -> None:
    recipe: Any = load_recipe(composed(*TEXT, "task.block_size=4"))
    rows = ["abc", "", "defghi", None, "jkl", "m"]
    blocks = [
        row
        for start in (0, 2, 4)
        for row in recipe.features({"text": rows[start : start + 2]}, Characters())["input_ids"]
    ]
    assert ["".join(map(chr, block)) for block in blocks] == ["abcd", "efgh", "ijkl"]
    assert recipe.preparation_notes() == [
        "13 tokens make 3 blocks of 4; the last 1 tokens fill no block and are left out",
        "4 rows run into the next one with nothing between; task.row_end says what to put there",
    ]
    assert recipe.items({"input_ids": blocks[0]}) == 3  # the first token of a block is not predicted
    assert recipe.length({"input_ids": blocks[0]}) == 4


@pytest.mark.parametrize(
    ("overrides", "end"),
    [
        ((), ""),
        (("dataset=files", "dataset.train=a.txt", "dataset.validation=b.txt"), "\n"),
        (("dataset=files", "dataset.train=a.jsonl", "dataset.validation=b.jsonl"), ""),
        (("dataset=files", "dataset.train=a.txt", "dataset.validation=b.txt", r"task.row_end='|\n'"), "|\n"),
    ],
)
def test_lines_of_text_files_get_their_line_feed_back(overrides: tuple[str, ...], end: str) -> None:
    recipe: Any = load_recipe(composed(*TEXT, *overrides))
    assert recipe.row_end() == end


def test_dialogue_features_and_long_targets() -> None:
    recipe: Any = load_recipe(
        composed(
            *DIALOGUES,
            "task.max_target_length=4",
            "task.source_prefix='> '",
            "dataset.columns.texts=said",
            "dataset.columns.labels=reply",
        )
    )
    made = recipe.features({"said": ["hi", "ho"], "reply": ["abc", "abcdef"]}, Characters())
    assert made["text"] == ["> hi", "> ho"]
    assert made["reference"] == ["abc", "abcdef"]  # scored whole
    assert made["labels"] == [[97, 98, 99, 0], [97, 98, 99, 0]]  # the end stays
    assert recipe.preparation_notes() == [
        "1 of 2 targets were longer than 4 tokens (on average by 3.0) and lost their end in training; BLEU sees them "
        "whole"
    ]
    row = {name: values[0] for name, values in made.items()}
    assert (recipe.length(row), recipe.items(row)) == (8, 4)


def test_classic_dialogue_settings() -> None:
    config = composed("recipe=blenderbot_mudoconv")
    assert (config.model.hub_id, config.dataset.hub_id) == ("facebook/blenderbot-400M-distill", "smangrul/MuDoConv")
    assert (config.dataset.max_train_rows, config.dataset.max_validation_rows) == (10_000, 1_000)
    assert (
        config.optimizer.lr,
        config.optimizer.weight_decay,
        config.scheduler.warmup_steps,
        config.train.epochs,
        config.train.seed,
    ) == (1e-6, 0.0, 100, 1, 25)
    assert (config.train.micro_batch_size, config.train.eval_micro_batch_size, config.zero.stage) == (200, 100, 2)
    options = load_recipe(config).options
    assert (options.source_prefix, options.turn_separator, options.max_source_length, options.max_target_length) == (
        "chatbot: ",
        " </s> <s> ",
        128,
        64,
    )
    assert (
        options.num_beams,
        options.min_length,
        options.max_length,
        options.no_repeat_ngram_size,
        options.repetition_penalty,
    ) == (10, 20, 64, 3, 1.2)
    ddp = composed("recipe=blenderbot_mudoconv", "launcher=ddp")
    assert (ddp.train.micro_batch_size, ddp.train.eval_micro_batch_size, ddp.zero.stage) == (100, 50, 0)
    assert composed("recipe=blenderbot_mudoconv", "train.micro_batch_size=7").train.micro_batch_size == 7


def test_classic_text_settings() -> None:
    config = composed("recipe=gpt2_wikitext")
    assert (config.model.hub_id, config.dataset.hub_config, config.zero.stage, config.offload.name) == (
        "openai-community/gpt2-xl",
        "wikitext-2-raw-v1",
        3,
        "cpu",
    )
    assert (
        config.optimizer.lr,
        config.train.micro_batch_size,
        config.train.eval_micro_batch_size,
        config.train.epochs,
    ) == (5e-4, 16, 1, 1)
    assert load_recipe(config).options.block_size == 128
    assert composed("recipe=gpt2_wikitext", "launcher=ddp").offload.name == "none"
    assert composed(*TEXT).zero.stage == 2


@pytest.mark.parametrize(
    ("recipe", "models"),
    [
        ("blenderbot_mudoconv", "blenderbot_tiny blenderbot_small blenderbot_400m bart_base t5_small t5_base t5_large"),
        ("gpt2_wikitext", "gpt2_tiny gpt2 gpt2_xl smollm2_135m qwen25_500m qwen3_600m"),
    ],
)
def test_every_model_of_the_family_composes(recipe: str, models: str) -> None:
    for name in models.split():
        checked = check(compose_run([f"recipe={recipe}", f"model={name}"]), starting=False)
        assert checked.config.model.name == name
        assert checked.config.model.fp16_overflows == name.startswith("t5")


def test_lengths_beyond_the_positions_are_refused() -> None:
    assert problems(*DIALOGUES, "task.max_source_length=256", "task.max_length=200", "task.max_target_length=129") == [
        "error: task.max_source_length=256: model=blenderbot_tiny has 128 positions; use task.max_source_length=128",
        "error: task.max_target_length=129: model=blenderbot_tiny has 128 positions; use task.max_target_length=128",
        "error: task.max_length=200: model=blenderbot_tiny has 128 positions; use task.max_length=128",
    ]
    assert problems(*TEXT, "task.block_size=129") == [
        "error: task.block_size=129: model=gpt2_tiny has 128 positions; use task.block_size=128"
    ]
    check(compose_run(["recipe=blenderbot_mudoconv", "model=t5_small", "task.max_source_length=2048"]), starting=False)


def test_position_limits() -> None:
    assert position_limit({"model_type": "t5", "n_positions": 512}) is None
    assert position_limit({"model_type": "gpt2", "n_positions": 1024}) == 1024
    assert position_limit({"model_type": "roberta", "max_position_embeddings": 514}) == 512
    assert position_limit({"model_type": "bert"}) is None


def test_wrong_family_is_refused_with_the_recipes_that_fit() -> None:
    assert problems("model=gpt2_tiny") == [
        "error: model=gpt2_tiny: is of the family causal_lm; recipe=deberta_mrpc trains encoder; use "
        "recipe=chat_sft or recipe=dpo or recipe=gpt2_wikitext"
    ]
    said = (
        "error: model=t5_small: is of the family seq2seq; recipe=gpt2_wikitext trains causal_lm; use "
        "recipe=blenderbot_mudoconv"
    )
    assert problems("recipe=gpt2_wikitext", "model=t5_small") == [said]


def test_wrong_options_are_named() -> None:
    assert problems(*DIALOGUES, "task.min_length=40") == [
        "error: task.max_length=32: task.min_length=40 is larger; for example task.max_length=64"
    ]
    (line,) = problems(*DIALOGUES, "task.nun_beams=3")
    assert line.startswith("error: task.nun_beams=3: this recipe reads no such key; it has source_prefix, ")


def test_numbers_are_the_text_they_are_in_a_csv() -> None:
    loaded = load_recipe(compose_run(["dataset.columns.sentence1=a"]).config)
    assert loaded.texts({"a": [1, "x", None, 2.5, ["t"]], "label": [0] * 5}, "sentence1") == [
        "1",
        "x",
        None,
        "2.5",
        ["t"],
    ]


def test_corpus_bleu() -> None:
    assert metrics.corpus_bleu(["the cat sat on the mat"], ["the cat sat on the mat"]) == {"bleu": pytest.approx(100.0)}
    # 6 of 6 words, 4 of 5 pairs, 3 of 4 triples, 2 of 3 quadruples, no brevity penalty; worked out by the definition
    ours = metrics.corpus_bleu(["the cat sat on a mat", "yes"], ["the cat sat on the mat", "yes"])
    expected = 100 * math.exp((math.log(6 / 7) + math.log(3 / 5) + math.log(2 / 4) + math.log(1 / 3)) / 4)
    assert ours == {"bleu": pytest.approx(expected)}


def test_empty_texts_give_finite_figures_or_none() -> None:
    assert metrics.corpus_bleu(["", "\f"], ["a b", "c"]) == {"bleu": 0.0, "empty_predictions": 2.0}
    mixed = metrics.corpus_bleu(["a b c d", "x"], ["a b c d", ""])
    assert math.isfinite(mixed["bleu"])
    assert mixed["empty_references"] == 1.0
    assert metrics.corpus_bleu(["x", ""], ["", "\f"]) == {"empty_predictions": 1.0, "empty_references": 2.0}


def test_perplexity_is_weighted_by_tokens() -> None:
    # 2 tokens with a loss of 1 each, 8 with 2 each: 18 / 10
    scores = metrics.perplexity([2.0, 16.0], [2, 8])
    assert scores == {"loss": pytest.approx(1.8), "perplexity": pytest.approx(math.exp(1.8))}
    assert metrics.perplexity([1e6], [1])["perplexity"] == math.inf
