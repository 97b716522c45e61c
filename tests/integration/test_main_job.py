"""The main job on real ranks: data of all kinds, exact evaluation, saved weights, phases, by-hand command."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import CASES, ROOT, SHARED, cli_environment, needs_shared

DATA = CASES / "data"
SHORT = ("train.max_steps=2", "train.log_every=1", "scheduler.warmup_steps=0")


def files(train: str, validation: str = "cls_eval7.csv") -> tuple[str, ...]:
    return ("dataset=files", f'dataset.train="{DATA}/{train}"', f'dataset.validation="{DATA}/{validation}"')


@pytest.fixture(scope="module")
def default_run(tmp_path_factory):
    """`python -m runner` as a user types it, on the whole bundled sample."""
    from tests.conftest import command

    result = command(run_dir=tmp_path_factory.mktemp("default") / "run", timeout=240)
    assert result.returncode == 0, result.text
    return result


def test_the_embedded_default_learns_and_says_what_it_is(default_run):
    record = default_run.record
    assert record["status"] == "completed"
    assert record["metrics"]["accuracy"] >= 0.90
    assert (record["world_size"], record["observed"]["zero_stage"], record["observed"]["distributed_type"]) == (
        2,
        2,
        "DEEPSPEED",
    )
    assert record["optimizer_steps"] == 375  # 4,000 rows / (16 × 2) = 125 steps, 3 epochs
    assert record["samples_seen"] == 12_000
    assert record["num_parameters"] == 305_154
    assert "GENERATED" in default_run.stdout
    assert "generated sample" in default_run.stdout
    assert record["data"]["train"]["generated"] is True


def test_phases_add_up_to_the_wall_time(default_run):
    record = default_run.record
    assert sum(record["phases"].values()) == pytest.approx(record["wall_seconds"], rel=0.01)
    for phase in ("startup", "forward", "backward", "optimizer", "evaluation", "save_model"):
        assert record["phases"][phase] > 0
    assert 0 < record["time_to_first_step_seconds"] < record["wall_seconds"]
    epoch = record["epochs"][0]
    assert epoch["train_samples_per_second"] == pytest.approx(4000 / epoch["train_seconds"])
    assert epoch["train_tokens_per_second"] == pytest.approx(record["data"]["train"]["tokens"] / epoch["train_seconds"])
    assert epoch["step_seconds_p50"] <= epoch["step_seconds_p95"]


def test_memory_predicted_and_measured_stand_side_by_side(default_run):
    record = default_run.record
    assert len(record["peak_memory_bytes"]) == 2
    predicted, measured = max(record["memory_prediction"]["per_rank_bytes"]), max(record["peak_memory_bytes"])
    assert predicted == pytest.approx(measured, rel=0.25)


def test_the_saved_model_scores_what_the_run_scored(default_run):
    """`from_pretrained(run/model)` in a fresh process gives the run's own predictions."""
    script = """
import json, sys
from transformers import AutoModelForSequenceClassification, AutoTokenizer
model, tokenizer = (cls.from_pretrained(sys.argv[1]) for cls in (AutoModelForSequenceClassification, AutoTokenizer))
rows = [json.loads(line) for line in open(sys.argv[2])][:64]
batch = tokenizer([r["sentence1"] for r in rows], [r["sentence2"] for r in rows], padding=True, return_tensors="pt")
labels = [model.config.id2label[i] for i in model(**batch).logits.argmax(-1).tolist()]
print(json.dumps([labels, model.config.label2id]))
"""
    import sys

    done = subprocess.run(
        [sys.executable, "-c", script, str(default_run.run_dir / "model"),
        str(ROOT / "runner/samples/paraphrases/validation.jsonl")],
        capture_output=True, text=True, timeout=120, env=cli_environment(HF_HUB_OFFLINE="1"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    predictions, labels = json.loads(done.stdout)
    kept = [
        json.loads(line) for line in (default_run.run_dir / "predictions" / "validation.jsonl").read_text().splitlines()
    ]
    assert [line["row"] for line in kept] == list(range(500))
    assert predictions == [line["prediction"] for line in kept[:64]]
    assert labels == {"not_equivalent": 0, "equivalent": 1}


def test_the_by_hand_command_really_runs(real_run, tmp_path: Path):
    """The one line in command.sh, pasted into a shell: the same losses as the runner's own ranks."""
    for launcher in ("deepspeed", "ddp"):
        run_dir = tmp_path / launcher
        small = (
            f"launcher={launcher}",
            *SHORT,
            "dataset.max_train_rows=64",
            "dataset.max_validation_rows=8",
            "train.save_model=false",
        )
        result = real_run(*small, run_dir=run_dir)
        assert result.returncode == 0, result.text
        line = (run_dir / "command.sh").read_text().strip()
        done = subprocess.run(
            line, shell=True, capture_output=True, text=True, timeout=180, env=cli_environment(), cwd=ROOT
        )
        assert done.returncode == 0, done.stderr[-2000:]
        by_hand = [json.loads(text) for text in (run_dir / "by_hand_1" / "metrics.jsonl").read_text().splitlines()]
        assert [step["loss"] for step in by_hand] == pytest.approx([step["loss"] for step in result.steps], rel=1e-6)
        assert json.loads((run_dir / "by_hand_1" / "record.json").read_text())["status"] == "completed"


@pytest.mark.parametrize(
    ("train", "names"),
    [
        ("cls_strlabels.csv", ["different", "same"]),
        ("cls_labels12.csv", ["1", "2"]),
        ("cls_floatlabels.csv", ["0", "1"]),
        ("cls_header_space.csv", ["0", "1"]),
        ("cls 100% (a=b),v2 ü.csv", ["0", "1"]),
    ],
)
def test_labels_and_headers_of_every_kind(train, names, real_run, tmp_path: Path):
    """One label map from the training split, in the record and in the saved configuration."""
    validation = {"cls_strlabels.csv": "cls_strlabels.csv", "cls_labels12.csv": "cls_labels12.csv"}.get(
        train, "cls_eval7.csv"
    )
    result = real_run(*files(train, validation), *SHORT, run_dir=tmp_path / "run")
    assert result.returncode == 0, result.text
    assert result.record["config"]["dataset"]["label_names"] == names
    saved = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert saved["id2label"] == {"0": names[0], "1": names[1]}
    assert result.record["epochs"][0]["eval_rows"] == result.record["epochs"][0]["eval_rows_scored"] > 0


def test_columns_are_mapped(real_run, tmp_path: Path):
    mapped = ("dataset.columns.sentence1=text_a", "dataset.columns.sentence2=text_b", "dataset.columns.label=gold")
    result = real_run(
        *files("cls_othercols.csv", "cls_othercols.csv"),
        *mapped,
        *SHORT,
        "train.save_model=false",
        run_dir=tmp_path / "run",
    )
    assert result.returncode == 0, result.text
    assert result.record["config"]["dataset"]["columns"] == {
        "sentence1": "text_a",
        "sentence2": "text_b",
        "label": "gold",
    }


def test_hidden_labels_are_predicted_not_scored(real_run, tmp_path: Path):
    """A split whose labels are all -1."""
    result = real_run(
        *files("cls_train.csv"),
        f"dataset.test={DATA}/cls_test_hidden.csv",
        *SHORT,
        "train.save_model=false",
        run_dir=tmp_path / "run",
    )
    assert result.returncode == 0, result.text
    assert result.record["test"] == {"metrics": {}, "rows": 7, "scored": 0}
    assert len((tmp_path / "run" / "predictions" / "test.jsonl").read_text().splitlines()) == 7
    assert any("predicted, not scored" in notice for notice in result.record["notices"])


def test_a_head_with_other_labels_is_replaced_and_named(real_run, tmp_path: Path):
    """MNLI's 3 labels become the task's 2; only the head is new, and the run says so."""
    model = f"model.path={CASES}/models/tiny-deberta-3labels"
    result = real_run(
        *files("cls_train.csv"),
        model,
        "model.init=pretrained",
        "model.tokenizer=null",
        "task.max_length=64",
        *SHORT,
        run_dir=tmp_path / "run",
    )
    assert result.returncode == 0, result.text
    assert any("classifier.weight" in note and "everything else was loaded" in note for note in result.record["notes"])
    saved = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert len(saved["id2label"]) == 2


@pytest.mark.parametrize("launcher", ["ddp", "deepspeed"])
def test_two_ranks_share_the_rows(launcher, real_run, tmp_path: Path):
    """World size 2, 16 of the 32 rows on each rank: an epoch of 2 × 8 rows has 2 steps."""
    result = real_run(
        *files("cls_train.csv"),
        f"launcher={launcher}",
        "train.epochs=1",
        "train.micro_batch_size=8",
        "train.save_model=false",
        run_dir=tmp_path / "run",
    )
    assert result.returncode == 0, result.text
    assert (
        result.record["observed"]["world_size"],
        result.record["optimizer_steps"],
        result.record["samples_seen"],
    ) == (2, 2, 32)
    assert sorted(path.name for path in (tmp_path / "run" / "logs").glob("rank_*.log")) == ["rank_0.log", "rank_1.log"]


def test_evaluation_is_the_same_for_any_number_of_ranks(real_run, tmp_path: Path):
    """7 rows in batches of 2 on 1, 2 and 3 ranks: 7 predictions, in file order, equal; and a split of 1 row."""
    weights = tmp_path / "weights"
    trained = real_run(*files("cls_train.csv"), *SHORT, "launcher.num_processes=1", run_dir=tmp_path / "trained")
    shutil.copytree(trained.run_dir / "model", weights)
    one_row = tmp_path / "one.csv"
    one_row.write_text("\n".join((DATA / "cls_eval7.csv").read_text().splitlines()[:2]) + "\n")
    found = {}
    for ranks in (1, 2, 3):
        result = real_run(
            *files("cls_train.csv"), "mode=evaluate", "launcher=ddp", f"launcher.num_processes={ranks}",
            "train.eval_micro_batch_size=2", f"dataset.test={one_row}",
            f"model.path={weights}", "model.init=pretrained", "model.tokenizer=null",
            run_dir=tmp_path / f"ranks{ranks}",
        )  # fmt: skip
        assert result.returncode == 0, result.text
        assert result.record["evaluations"]["validation"]["rows"] == 7
        assert result.record["evaluations"]["test"]["rows"] == 1
        found[ranks] = ((result.run_dir / "predictions" / "validation.jsonl").read_text(), result.record["metrics"])
    assert found[1] == found[2] == found[3]
    rows = [json.loads(line)["row"] for line in found[2][0].splitlines()]
    assert rows == list(range(7))


def test_zero_3_saves_whole_weights(real_run, tmp_path: Path):
    """With every tensor partitioned, the export has the model's shapes and scores the same in a fresh run."""
    result = real_run(
        *files("cls_train.csv"),
        "zero_stage=3",
        "zero.stage3_param_persistence_threshold=0",
        *SHORT,
        run_dir=tmp_path / "run",
    )
    assert result.returncode == 0, result.text
    again = real_run(
        *files("cls_train.csv"),
        "mode=evaluate",
        "launcher=ddp",
        f"model.path={tmp_path}/run/model",
        "model.init=pretrained",
        "model.tokenizer=null",
        run_dir=tmp_path / "again",
    )
    assert again.returncode == 0, again.text
    assert (tmp_path / "again/predictions/validation.jsonl").read_text() == (
        tmp_path / "run/predictions/validation.jsonl"
    ).read_text()


FAULTY = """
from runner.recipe import recipe_class
Base = recipe_class("text_classification.py")

class Faulty(Base):
    def predict(self, model, batch, tokenizer, synced):
        import os
        if os.environ["RANK"] == "1":
            raise ValueError("the second shard has a bad row: sentence 17")
        return super().predict(model, batch, tokenizer, synced)
"""


def test_the_failing_ranks_own_error_comes_last(tmp_path: Path, run_cli):
    """Only rank 1 fails; the end of the terminal names it, its one line and its log, no launcher traceback."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "faulty.py").write_text(FAULTY)
    result = run_cli(
        *SHORT,
        "recipe.file=faulty.py",
        "dataset.max_train_rows=64",
        "dataset.max_validation_rows=8",
        "train.save_model=false",
        cwd=tmp_path,
    )
    assert result.returncode == 1
    last = result.stdout.splitlines()[-15:]
    assert any("failed: rank 1: ValueError: the second shard has a bad row: sentence 17" in line for line in last)
    assert any(f"{result.run_dir}/logs/rank_1.log" in line for line in last)
    assert "Traceback" not in result.text
    assert result.record["status"] == "failed"
    assert result.record["failure"]["rank"] == 1
    assert "sentence 17" in result.record["reason"]
    assert "Traceback" in (result.run_dir / "logs" / "rank_1.log").read_text()


def test_text_with_any_characters_reaches_the_record(real_run, tmp_path: Path):
    """Blanks, commas, equals signs, brackets and letters of any script, unchanged."""
    note = "李明 a,b = (c) [d] 100% ü"
    folder = tmp_path / "a b, (c)=d ü"
    result = real_run(
        f'note="{note}"', *SHORT, "dataset.max_train_rows=64", "dataset.max_validation_rows=8", run_dir=folder
    )
    assert result.returncode == 0, result.text
    assert result.record["note"] == note
    assert (folder / "model" / "model.safetensors").stat().st_size > 100_000


@needs_shared(SHARED / "data" / "mrpc")
@pytest.mark.soak
def test_real_mrpc_passes_the_gate(run_cli):
    """Line 4: a real pretrained encoder on real MRPC, 3 epochs; its folder is named by RUNNER_TEST_MINILM."""
    folder = os.environ.get("RUNNER_TEST_MINILM")
    if not folder:
        pytest.skip("RUNNER_TEST_MINILM names no folder with all-MiniLM-L6-v2")
    mrpc = SHARED / "data" / "mrpc"
    result = run_cli(
        "dataset=files",
        f"dataset.train={mrpc}/train.jsonl",
        f"dataset.validation={mrpc}/validation.jsonl",
        "model=minilm",
        f"model.path={shlex.quote(folder)}",
        "precision=bf16",
        timeout=1500,
    )
    assert result.returncode == 0, result.text
    assert result.record["metrics"]["accuracy"] >= 0.74
    assert result.record["metrics"]["f1"] >= 0.83
