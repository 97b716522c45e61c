"""The dialogue and the text recipe on real ranks: learning, exact scores, generation under every launcher."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from runner.compose import compose_run
from runner.recipe import load_recipe
from runner.train import assets
from tests.conftest import CASES, SHARED, Result, needs_shared

DIALOGUES = ("recipe=blenderbot_mudoconv", "model=blenderbot_tiny")
TEXT = ("recipe=gpt2_wikitext", "model=gpt2_tiny")
SHARDED = ("zero_stage=3", "zero.stage3_param_persistence_threshold=0")  # otherwise tensors this small stay whole
METHODS = {"ddp": ("launcher=ddp",), "zero2": ("zero_stage=2",), "zero3": SHARDED}
SCRATCH = ("train.save_model=false",)


def predictions(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.run_dir / "predictions/validation.jsonl").read_text().splitlines()]


def weights(result: Result) -> tuple[str, ...]:
    return ("model.init=pretrained", f"model.path={result.run_dir}/model", "model.tokenizer=null", "mode=evaluate")


@pytest.fixture(scope="module")
def dialogues(real_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The whole dialogue recipe on its sample."""
    result: Result = real_run(*DIALOGUES, "launcher=ddp", run_dir=tmp_path_factory.mktemp("dialogues") / "run")
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def text(real_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The whole text recipe on its sample."""
    result: Result = real_run(*TEXT, "zero_stage=2", run_dir=tmp_path_factory.mktemp("text") / "run")
    assert result.returncode == 0, result.stderr
    return result


def test_replies_are_learned(dialogues: Result, real_run: Any, tmp_path: Path) -> None:
    untrained = real_run(
        *DIALOGUES, "launcher=ddp", "mode=evaluate", "dataset.max_validation_rows=60", run_dir=tmp_path / "run"
    )
    assert untrained.record["metrics"]["bleu"] < 1
    assert dialogues.record["metrics"]["bleu"] >= 30
    assert dialogues.record["best"]["metric"] == "bleu"


def test_bleu_is_what_sacrebleu_says_of_the_kept_predictions(dialogues: Result, tmp_path: Path) -> None:
    rows = predictions(dialogues)
    samples = [
        json.loads(line)
        for line in (Path(__file__).parents[2] / "runner/samples/dialogues/validation.jsonl").read_text().splitlines()
    ]
    assert [row["row"] for row in rows] == list(range(200))
    assert [row["reference"] for row in rows] == [sample["labels"] for sample in samples]
    assert [row["text"] for row in rows] == ["chatbot: " + sample["texts"] for sample in samples]
    for name in ("prediction", "reference"):
        (tmp_path / name).write_text("".join(row[name] + "\n" for row in rows))
    typed = [
        sys.executable,
        "-m",
        "sacrebleu",
        str(tmp_path / "reference"),
        "-i",
        str(tmp_path / "prediction"),
        "-b",
        "-w",
        "8",
    ]
    said = subprocess.run(typed, capture_output=True, text=True, timeout=60, check=True)
    assert float(said.stdout) == pytest.approx(dialogues.record["metrics"]["bleu"], abs=1e-7)


@pytest.mark.soak
def test_replies_do_not_depend_on_ranks_or_partitioning(dialogues: Result, real_run: Any, tmp_path: Path) -> None:
    """41 rows in batches of 7: the last batch is short, and some rank has nothing in the last round."""
    few = (*DIALOGUES, *weights(dialogues), "dataset.max_validation_rows=41", "train.eval_micro_batch_size=7")
    runs = {
        "1": ("launcher=ddp", "launcher.num_processes=1"),
        "2": ("launcher=ddp",),
        "3": ("launcher=ddp", "launcher.num_processes=3"),
        "2 sharded": SHARDED,
    }
    found = {name: real_run(*few, *how, run_dir=tmp_path / name) for name, how in runs.items()}
    assert [result.returncode for result in found.values()] == [0] * 4, [result.stderr for result in found.values()]
    kept = {name: predictions(result) for name, result in found.items()}
    assert kept["1"] == kept["2"] == kept["3"] == kept["2 sharded"]
    assert [row["row"] for row in kept["1"]] == list(range(41))
    assert [row["prediction"] for row in kept["1"]] == [row["prediction"] for row in predictions(dialogues)[:41]]


def test_text_is_learned(text: Result, real_run: Any, tmp_path: Path) -> None:
    untrained = real_run(*TEXT, "launcher=ddp", "mode=evaluate", run_dir=tmp_path / "run")
    before, after = untrained.record["metrics"]["perplexity"], text.record["metrics"]["perplexity"]
    assert before == pytest.approx(512, rel=0.1)  # as many as the vocabulary has tokens
    assert after < before / 2
    assert after < 4
    assert text.record["metrics"]["perplexity"] == pytest.approx(math.exp(text.record["metrics"]["loss"]))


def test_perplexity_does_not_depend_on_ranks(text: Result, real_run: Any, tmp_path: Path) -> None:
    """67 blocks in batches of 16: 4 batches and 3 rows over."""
    found = [
        real_run(*TEXT, *weights(text), *how, run_dir=tmp_path / str(index))
        for index, how in enumerate((("launcher=ddp", "launcher.num_processes=1"), SHARDED))
    ]
    one, two = (result.record for result in found)
    assert one["evaluations"]["validation"]["rows"] == two["evaluations"]["validation"]["rows"] == 67
    assert two["metrics"]["perplexity"] == pytest.approx(one["metrics"]["perplexity"], rel=1e-4)
    assert one["metrics"]["perplexity"] == pytest.approx(text.record["metrics"]["perplexity"], rel=1e-4)
    rows = predictions(found[1])
    assert sum(row["prediction"]["loss"] * row["prediction"]["tokens"] for row in rows) / (67 * 127) == pytest.approx(
        two["metrics"]["loss"]
    )


@pytest.mark.soak
@pytest.mark.variant
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("recipe", ["dialogues", "text"])
def test_full_runs_for_every_method(recipe: str, method: str, real_run: Any, tmp_path: Path) -> None:
    result = real_run(
        *(DIALOGUES if recipe == "dialogues" else TEXT), *METHODS[method], *SCRATCH, run_dir=tmp_path / "run"
    )
    metrics = result.record["metrics"]
    assert metrics["bleu"] >= 30 if recipe == "dialogues" else metrics["perplexity"] < 256


SEQ2SEQ_SIZES = (
    "d_model=32 encoder_layers=1 decoder_layers=1 encoder_attention_heads=2 decoder_attention_heads=2 "
    "encoder_ffn_dim=64 decoder_ffn_dim=64 vocab_size=215"
)
DECODER_SIZES = (
    "hidden_size=64 intermediate_size=96 num_hidden_layers=2 num_attention_heads=4 num_key_value_heads=2 vocab_size=512"
)
FAMILIES = {
    "t5_small": "d_model=32 d_kv=16 d_ff=64 num_layers=2 num_heads=2 vocab_size=215",
    "bart_base": SEQ2SEQ_SIZES,
    "blenderbot_small": SEQ2SEQ_SIZES,
    "smollm2_135m": DECODER_SIZES,
    "qwen25_500m": DECODER_SIZES,
    "qwen3_600m": DECODER_SIZES + " head_dim=16",
}


@pytest.mark.soak
@pytest.mark.parametrize(
    "model",
    [
        name if name in ("t5_small", "qwen3_600m") else pytest.param(name, marks=pytest.mark.variant)
        for name in FAMILIES
    ],
)
def test_every_architecture_trains_and_generates_partitioned(model: str, real_run: Any, tmp_path: Path) -> None:
    """The real model classes, made small, with random weights: forward, backward, generation and
    saving under ZeRO-3.
    """
    replies = "d_model" in FAMILIES[model]
    kind = ("recipe=gpt2_wikitext", "dataset=stories_sample")
    if replies:
        kind = (
            "recipe=blenderbot_mudoconv",
            "dataset=dialogue_sample",
            "task.num_beams=2",
            "task.min_length=0",
            "task.max_length=12",
        )
    sizes = [f"model.config.{item}" for item in FAMILIES[model].split()]
    few = (
        "dataset.max_train_rows=200",
        "dataset.max_validation_rows=60",
        "train.micro_batch_size=4",
        "train.eval_micro_batch_size=8",
        "train.max_steps=4",
    )
    tokenizer = "blenderbot_tiny" if replies else "gpt2_tiny"
    made = (f"model={model}", "model.init=random", f"model.tokenizer=bundled:{tokenizer}", *sizes)
    result = real_run(*kind, *made, *few, *SHARDED, run_dir=tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert result.record["metrics"].keys() & {"bleu", "perplexity"}
    assert (result.run_dir / "model/model.safetensors").is_file()


@needs_shared(SHARED / "data/mudoconv_sample")
@pytest.mark.parametrize(
    ("ranks", "train"),
    [(3, False), pytest.param(1, False, marks=pytest.mark.soak), pytest.param(2, True, marks=pytest.mark.soak)],
)
def test_689_rows_in_order_none_twice(ranks: int, train: bool, real_run: Any, tmp_path: Path) -> None:
    data = SHARED / "data/mudoconv_sample"
    files = ("dataset=files", f"dataset.train={data}/train.jsonl", f"dataset.validation={data}/validation.jsonl")
    fast = ("task.num_beams=1", "task.max_length=12", "task.max_source_length=128", *SCRATCH)
    how = ("train.epochs=1",) if train else ("mode=evaluate",)
    result = real_run(
        *DIALOGUES, *files, *fast, *how, "launcher=ddp", f"launcher.num_processes={ranks}", run_dir=tmp_path / "run"
    )
    assert result.returncode == 0, result.stderr
    rows = predictions(result)
    references = [json.loads(line)["labels"] for line in (data / "validation.jsonl").read_text().splitlines()]
    assert [row["row"] for row in rows] == list(range(689))
    assert [row["reference"] for row in rows] == references


# One process, no launcher: what the recipe asks of the model.


def tiny(*overrides: str) -> tuple[Any, Any, Any]:
    """Recipe, tokenizer and untrained model in evaluation mode."""
    recipe = load_recipe(compose_run([*DIALOGUES, *overrides]).config)
    tokenizer = assets.build_tokenizer(recipe.config)
    return recipe, tokenizer, assets.build_model(recipe, tokenizer)[0].eval()


def test_loss_uses_the_models_own_shift_and_no_padding() -> None:
    recipe, tokenizer, model = tiny()
    made = recipe.features(
        {"texts": ["Hi! I like red", "Do you like soup?"], "labels": ["I like red best", "Yes"]}, tokenizer
    )
    batch = recipe.collate([{name: values[index] for name, values in made.items()} for index in range(2)], tokenizer)
    assert batch["labels"].tolist()[1][-3:] == [-100] * 3
    assert batch["attention_mask"].sum(dim=1).tolist() == [len(ids) for ids in made["input_ids"]]
    start = model.config.decoder_start_token_id
    shifted = torch.tensor([[start, *row[:-1]] for row in batch["labels"].tolist()])
    shifted[shifted == -100] = tokenizer.pad_token_id
    logits = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], decoder_input_ids=shifted
    ).logits
    kept = batch["labels"] != -100
    expected = torch.nn.functional.cross_entropy(logits[kept], batch["labels"][kept])
    assert recipe.loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-5)
    assert int(kept.sum()) == sum(recipe.items({"labels": ids}) for ids in made["labels"])


def test_the_encoder_runs_once_a_batch_whatever_the_beams() -> None:
    recipe, tokenizer, model = tiny("task.num_beams=4", "task.min_length=5", "task.max_length=12")
    seen: list[torch.Size] = []
    model.get_encoder().register_forward_hook(lambda module, inputs, output: seen.append(output[0].shape))
    made = recipe.features({"texts": ["Hi!", "I like red and you?"], "labels": ["", ""]}, tokenizer)
    batch = recipe.collate([{name: values[index] for name, values in made.items()} for index in range(2)], tokenizer)
    replies = recipe.predict(model, batch, tokenizer, synced=False)
    assert len(replies) == 2
    assert seen == [torch.Size([2, max(map(len, made["input_ids"])), 128])]


# Cases collected from other projects' issues.

BLENDERBOT = (
    *DIALOGUES, "model.init=pretrained", f"model.path={CASES}/models/tiny-blenderbot-128", "model.tokenizer=null",
    "dataset=files", "dataset.columns.texts=source",
    "dataset.columns.labels=target", r"task.turn_separator=\n", f"dataset.train={CASES}/data/dlg_train.jsonl",
    "train.epochs=1", *SCRATCH,
)  # fmt: skip


def test_partitioned_generation_ends_with_five_rows_on_two_ranks(real_run: Any, tmp_path: Path) -> None:
    """Rows do not divide by ranks, and ranks finish at different lengths."""
    result = real_run(
        *BLENDERBOT,
        *SHARDED,
        f"dataset.validation={CASES}/data/dlg_eval5.jsonl",
        "train.eval_micro_batch_size=2",
        run_dir=tmp_path / "run",
    )
    assert result.returncode == 0, result.stderr
    assert [row["row"] for row in predictions(result)] == [0, 1, 2, 3, 4]


def test_long_dialogues_and_targets_are_cut_at_the_right_end(real_run: Any, tmp_path: Path) -> None:
    """61 turns, of which only the last matters, in 64 positions; a target of 1,600 tokens."""
    files = (
        f"dataset.train=[{CASES}/data/dlg_long.jsonl,{CASES}/data/dlg_long_target.jsonl]",
        f"dataset.validation={CASES}/data/dlg_long.jsonl",
    )
    result = real_run(*BLENDERBOT, "launcher=ddp", *files, "task.max_source_length=64", run_dir=tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert predictions(result)[0]["text"] == "chatbot: LASTQUESTION which colour is the zeppelin?"
    notes = result.record["notes"]
    assert any(
        note.startswith("train: 1 of 2 dialogues were longer than 64 tokens") and "59.00 turns dropped" in note
        for note in notes
    )
    assert any(note.startswith("train: 1 of 2 targets were longer than 32 tokens") for note in notes)


def test_empty_replies_and_references_are_counted(real_run: Any, tmp_path: Path) -> None:
    """Two of four references are empty, and no reply has room for a word."""
    result = real_run(
        *(key for key in BLENDERBOT if not key.startswith("train.")),
        "launcher=ddp",
        "mode=evaluate",
        f"dataset.validation={CASES}/data/dlg_empty_ref.jsonl",
        "task.max_length=2",
        run_dir=tmp_path / "run",
    )
    assert result.returncode == 0, result.stderr
    assert result.record["metrics"] == {"bleu": 0.0, "empty_predictions": 4.0, "empty_references": 2.0}


def test_wider_tokenizer_under_zero3(real_run: Any, tmp_path: Path) -> None:
    """A model built from its configuration starts at ln(vocabulary) at every stage, also with a token added to the
    tokenizer.
    """
    folder = tmp_path / "model"
    shutil.copytree(CASES / "models/tiny-gpt2-nopad", folder)
    folder.chmod(0o755)
    settings = folder / "tokenizer_config.json"
    settings.chmod(0o644)
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "additional_special_tokens": ["<|new|>"]}))
    lines = CASES / "data/lm_train.txt"
    files = ("dataset=files", f"dataset.train={lines}", f"dataset.validation={lines}")
    common = (
        *TEXT,
        f"model.path={folder}",
        "model.tokenizer=null",
        "task.block_size=32",
        *files,
        "train.max_steps=1",
        *SCRATCH,
    )
    sharded, whole = (
        real_run(*common, *how, run_dir=tmp_path / name)
        for name, how in {"zero3": SHARDED, "ddp": ("launcher=ddp",)}.items()
    )
    assert sharded.returncode == 0, sharded.stderr
    assert any(
        "the tokenizer has 401 tokens, the model 400: the embeddings were enlarged" in note
        for note in sharded.record["notes"]
    )
    assert sharded.steps[0]["loss"] == pytest.approx(whole.steps[0]["loss"], rel=1e-4)
    assert sharded.steps[0]["loss"] == pytest.approx(math.log(401), rel=0.02)
    assert sharded.record["notes"][0].startswith("train: 3,600 tokens make 112 blocks of 32")
