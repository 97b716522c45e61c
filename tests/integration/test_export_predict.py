"""From a csv of tickets to predictions with probabilities, and from checkpoints to `from_pretrained` folders."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest

from runner.cli.export import main as export
from runner.cli.predict import main as predict
from runner.errors import RequestError

QUICK = ("train.max_steps=4", "train.epochs=1", "dataset.max_train_rows=64", "dataset.max_validation_rows=16")
TOPICS = {
    "billing": "invoice refund charge card",
    "login": "password reset account locked",
    "praise": "great thanks love",
}


def _tickets(path: Path, rows: int, labels: bool = True) -> Path:
    """Invented tickets: an id, two words of the topic's four, and the topic."""
    draw = random.Random(rows)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", *(["queue"] if labels else [])])
        for number in range(rows):
            topic = list(TOPICS)[number % 3]
            words = " ".join(draw.sample(TOPICS[topic].split(), 2))
            writer.writerow([number, words, *([topic] if labels else [])])
    return path


@pytest.fixture(scope="module")
def runs(real_run: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two tiny runs on the same tickets, without a final model, each with a checkpoint."""
    folder = tmp_path_factory.mktemp("tickets")
    data = (
        "dataset=files",
        f'dataset.train="{_tickets(folder / "train.csv", 64)}"',
        f'dataset.validation="{_tickets(folder / "dev.csv", 16)}"',
        "dataset.columns.sentence1=text",
        "dataset.columns.label=queue",
    )
    methods = {"ddp": ("launcher=ddp",), "zero3": ("launcher=deepspeed", "zero_stage=3")}
    for name, method in methods.items():
        done = real_run(
            *method, *data, *QUICK, "checkpoint.every_epoch=true", "train.save_model=false", run_dir=folder / name
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return {name: folder / name for name in methods}


def test_tickets_become_predictions_with_probabilities(runs: dict[str, Path], tmp_path: Path) -> None:
    """DDP and ZeRO-3 trained alike, so their exported checkpoints say the same; the tickets' own columns stay."""
    rows = {}
    for name, run in runs.items():
        assert export([str(run), "--checkpoint", "best", "--to", str(tmp_path / name)]) == 0
        tickets = _tickets(tmp_path / "new.csv", 7, labels=False)
        assert predict([str(tmp_path / name), "--input", str(tickets), "--output", str(tmp_path / f"{name}.csv")]) == 0
        with open(tmp_path / f"{name}.csv", newline="") as file:
            rows[name] = list(csv.DictReader(file))
    first = rows["ddp"]
    assert list(first[0]) == ["id", "text", "prediction", *(f"probability_{topic}" for topic in sorted(TOPICS))]
    assert [row["id"] for row in first] == [str(number) for number in range(7)]
    for row, other in zip(first, rows["zero3"], strict=True):
        shares = {topic: float(row[f"probability_{topic}"]) for topic in TOPICS}
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-5)
        assert row["prediction"] == max(shares, key=lambda topic: shares[topic])
        assert [float(other[f"probability_{topic}"]) for topic in TOPICS] == pytest.approx(
            list(shares.values()), abs=1e-4
        )


def test_an_epochs_record_says_what_else_the_machine_did(runs: dict[str, Path]) -> None:
    (epoch,) = json.loads((runs["ddp"] / "record.json").read_text())["epochs"]
    assert set(epoch["machine"]) == {"others_busy_cores", "waited_share", "steal_share"}
    assert epoch["machine"]["others_busy_cores"] >= 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--output", "out.xlsx"), "the ending is not one of .csv, .jsonl"),
        (("--output", "out.csv", "--input", "no.csv"), "No such file"),
        (("dataset.columns.sentence1=body", "--output", "out.csv"), "no such column; it has id, text"),
    ],
)
def test_wrong_requests_are_one_line(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tickets = _tickets(tmp_path / "new.csv", 3, labels=False)
    with pytest.raises(RequestError, match=why):
        predict([str(runs["ddp"]), "--input", str(tickets), *arguments])
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


def test_an_unknown_checkpoint_is_named_with_those_there_are(runs: dict[str, Path]) -> None:
    with pytest.raises(RequestError, match="there is no such checkpoint; "):
        export([str(runs["ddp"]), "--checkpoint", "step_99"])
