"""The check of a GPU machine: its plan, its verdicts, and that it goes on where it was. No run is started here."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from runner import gpu_check
from runner.config.catalogue import option_files
from runner.gpu_check import PIECES, Piece, check, main


def recorded(folder: Path, losses: list[float], **record: object) -> Path:
    folder.mkdir(parents=True)
    content = {"observed": {"device": "cpu", "optimizer_class": "torch.AdamW"}, **record}
    (folder / "record.json").write_text(json.dumps(content))
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"loss": loss}) + "\n" for loss in losses))
    return folder


def test_every_launcher_precision_and_optimizer_is_tried():
    words = {word for piece in PIECES for word in piece.overrides}
    assert {f"launcher={name}" for name in option_files("launcher")} <= words
    assert {f"optimizer={name}" for name in option_files("optimizer") if name != "adamw"} <= words
    assert {f"zero_stage={stage}" for stage in range(4)} <= words
    assert {f"precision={name}" for name in ("fp32", "bf16", "fp16")} <= words


def test_losses_are_held_to_the_baselines(tmp_path):
    baseline = recorded(tmp_path / "baseline", [1.0, 0.5])
    near, far = recorded(tmp_path / "near", [1.00005, 0.5]), recorded(tmp_path / "far", [1.0, 0.5001])
    piece = Piece("zero2", ())
    assert check(piece, near, baseline, "cpu").verdict == "passed"
    assert check(piece, far, baseline, "cpu").verdict == "failed"
    broken = recorded(tmp_path / "broken", [1.0, float("nan")])
    assert check(piece, broken, baseline, "cpu").verdict == "failed"
    assert "not on cuda" in check(piece, near, baseline, "cuda").words


@pytest.mark.parametrize(("measured", "verdict"), [(90, "passed"), (60, "failed"), (130, "failed")])
def test_memory_is_held_to_the_prediction(tmp_path, measured, verdict):
    facts = {"memory_prediction": {"per_rank_bytes": [80, 100]}, "peak_memory_bytes": [50, measured]}
    folder = recorded(tmp_path / "run", [1.0], **facts)
    assert check(Piece("memory", (), None, memory=True), folder, folder, "cpu").verdict == verdict


def test_what_has_passed_is_not_run_again(tmp_path, monkeypatch, capsys):
    """Runs are replaced: the first time one fails, the second time only that one is run."""
    started: list[str] = []

    def run(line, **_keys):
        folder = Path(next(word for word in line if word.startswith("hydra.run.dir=")).partition("=")[2])
        name = folder.name.rpartition("_")[0]
        started.append(name)
        if name == "zero1_fp32" and len(started) < 3:
            return CompletedProcess(line, 1, "", "it failed\n")
        recorded(folder, [1.0])
        return CompletedProcess(line, 0, "", "")

    monkeypatch.setattr(gpu_check.subprocess, "run", run)
    arguments = ["--dry-run", "--out", str(tmp_path), "--only", "zero1_fp32,ddp_fp16"]
    assert main(arguments) == 1
    assert started == ["ddp_fp32", "zero1_fp32"]  # fp16 needs a GPU
    assert "exit status 1: it failed" in capsys.readouterr().out
    assert main(arguments) == 0
    assert started == ["ddp_fp32", "zero1_fp32", "zero1_fp32"]
    results = json.loads((tmp_path / "cpu" / "results.json").read_text())["pieces"]
    assert {one["piece"]: one["verdict"] for one in results} == {
        "ddp_fp32": "passed",
        "zero1_fp32": "passed",
        "ddp_fp16": "skipped",
    }
    assert "| ddp_fp16 | skipped |" in (tmp_path / "cpu" / "results.md").read_text()


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "visible_devices", lambda: ())
    assert main([]) == 2
    assert "--dry-run" in capsys.readouterr().err
    assert main(["--only", "zero9"]) == 2
    assert main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(PIECES)


@pytest.mark.soak
@pytest.mark.variant
@pytest.mark.timeout(900)
def test_the_dry_run_goes_through_every_piece(tmp_path):
    assert main(["--dry-run", "--out", str(tmp_path)]) == 0
