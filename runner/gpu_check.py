"""Try what only GPUs take, on this machine: `python -m runner.gpu_check`. Needs no network.

Each piece is a real run with random weights on a generated sample; what it must show is read from its record. One
that has passed is not run again. `--dry-run` puts the CPU in the GPU's place: so the check itself is known to work.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.machine import is_installed, visible_devices
from runner.memory.amounts import mib
from runner.record_format import RECORD_FILE

SMALL = (
    "train.max_steps=6",
    "train.log_every=1",
    "train.save_model=false",
    "train.evaluate_every_epoch=false",
    "dataset.max_train_rows=192",
    "dataset.max_validation_rows=32",
)
# 8 layers of 12.6 M parameters, so that what a model needs is more than what a CUDA context does.
LARGE = (
    "model.config.hidden_size=1024",
    "model.config.intermediate_size=4096",
    "model.config.num_hidden_layers=8",
    "model.config.num_attention_heads=16",
)
LONGEST_SECONDS = 180
EXACT, HALF = 1e-4, 3e-2  # relative, of each step's loss against DDP's in fp32
MEMORY = (0.75, 1.15)  # measured ÷ predicted


@dataclass(frozen=True)
class Piece:
    """One run and what it must show.

    Attributes:
        tolerance: of its losses against the baseline's; None: they are not compared.
        memory: whether the measured peak is compared with the prediction.
        ranks: at least so many devices.
        package: that it needs beside torch.
        on_cpu: whether a dry run can do it.
    """

    name: str
    overrides: tuple[str, ...]
    tolerance: float | None = EXACT
    memory: bool = False
    ranks: int = 1
    package: str | None = None
    on_cpu: bool = True


@dataclass(frozen=True)
class Verdict:
    """How a piece ended: `passed`, `failed` or `skipped`, and why."""

    piece: str
    verdict: str
    words: str
    seconds: float = 0.0


ZERO = ("launcher=deepspeed", "zero.stage3_param_persistence_threshold=0")
PIECES = (
    Piece("ddp_fp32", ("launcher=ddp", "precision=fp32")),
    *(
        Piece(f"zero{stage}_fp32", (*ZERO[: 1 + (stage == 3)], f"zero_stage={stage}", "precision=fp32"))
        for stage in range(4)
    ),
    Piece("fsdp_fp32", ("launcher=fsdp", "precision=fp32"), ranks=2),
    Piece("ddp_bf16", ("launcher=ddp", "precision=bf16"), HALF),
    Piece("zero2_bf16", ("zero_stage=2", "precision=bf16"), HALF),
    Piece("zero3_bf16", (*ZERO, "zero_stage=3", "precision=bf16"), HALF),
    Piece("ddp_fp16", ("launcher=ddp", "precision=fp16"), None, on_cpu=False),  # the first steps may be skipped
    Piece("zero2_fp16", ("zero_stage=2", "precision=fp16"), None, on_cpu=False),
    Piece("zero2_offload", ("zero_stage=2", "offload=optimizer_cpu", "precision=fp32"), package="deepspeed"),
    Piece("spawned_ranks", ("launcher=ddp", "precision=fp32", "launcher.start_method=spawn")),
    Piece("batches_not_ahead", ("launcher=ddp", "precision=fp32", "train.batches_ahead=0")),
    Piece("batches_by_workers", ("launcher=ddp", "precision=fp32", "train.dataloader_workers=2")),
    *(
        Piece(f"optimizer_{name}", ("launcher=ddp", "precision=fp32", f"optimizer={name}"), None, package=package)
        for name, package in (
            ("sgd", None),
            ("adafactor", None),
            ("muon", None),
            ("lion", "bitsandbytes"),
            ("adamw_8bit", "bitsandbytes"),
        )
    ),
    *(
        Piece(f"memory_{name}", (*chosen, *LARGE, "precision=bf16"), None, memory=True, on_cpu=False)
        for name, chosen in (("ddp", ("launcher=ddp",)), ("zero2", ("zero_stage=2",)), ("zero3", ("zero_stage=3",)))
    ),
)
BASELINE = PIECES[0].name


def command(piece: Piece, folder: Path, device: str, ranks: int) -> list[str]:
    """The line that runs a piece."""
    chosen = (f"launcher.device={device}", f"launcher.num_processes={ranks}", f"hydra.run.dir={folder}")
    return [sys.executable, "-m", "runner", *piece.overrides, *SMALL, *chosen]


def check(piece: Piece, folder: Path, baseline: Path, device: str) -> Verdict:
    """What the record of a completed run shows."""
    record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    observed = record.get("observed", {})
    if observed.get("device") != device:
        return Verdict(piece.name, "failed", f"it ran on {observed.get('device')}, not on {device}")
    words = [f"loss {_losses(folder)[-1]:.6f}", f"{observed.get('optimizer_class')}"]
    if piece.tolerance is not None:
        apart = [abs(a / b - 1) for a, b in zip(_losses(folder), _losses(baseline), strict=True)]
        words.append(f"losses within {max(apart):.1e} of {BASELINE}")
        if not all(each <= piece.tolerance for each in apart):  # also where one is no number
            return Verdict(piece.name, "failed", ", ".join(words))
    if piece.memory:
        predicted, measured = _memory(record)
        ratio = measured / predicted
        words.append(f"measured ÷ predicted peak {ratio:.2f} ({mib(measured)})")
        if not MEMORY[0] <= ratio <= MEMORY[1]:
            return Verdict(piece.name, "failed", ", ".join(words))
    return Verdict(piece.name, "passed", ", ".join(words))


def _losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [float(json.loads(line)["loss"]) for line in lines]


def _memory(record: dict[str, dict[str, object]]) -> tuple[float, float]:
    """Predicted and measured bytes of the fullest rank."""
    predicted, measured = record["memory_prediction"]["per_rank_bytes"], record["peak_memory_bytes"]
    return float(max(_numbers(predicted))), float(max(_numbers(measured)))


def _numbers(value: object) -> list[float]:
    return [float(number) for number in value] if isinstance(value, list) else [float(str(value))]


def run_piece(piece: Piece, out: Path, device: str, devices: int) -> Verdict:
    """Run a piece, unless it cannot be run here."""
    if piece.ranks > devices:
        return Verdict(piece.name, "skipped", f"it needs {piece.ranks} devices, there is {devices}")
    if device == "cpu" and not piece.on_cpu:
        return Verdict(piece.name, "skipped", "it needs a GPU")
    if piece.package and not is_installed(piece.package):
        return Verdict(piece.name, "skipped", f"{piece.package} is not installed")
    folder, began = out / f"{piece.name}_{time.strftime('%H%M%S')}", time.monotonic()
    try:
        done = subprocess.run(
            command(piece, folder, device, min(2, devices)),
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Verdict(piece.name, "failed", f"it had not ended after {LONGEST_SECONDS} s", LONGEST_SECONDS)
    seconds = time.monotonic() - began
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        return Verdict(piece.name, "failed", f"exit status {done.returncode}: {' '.join(last)}", seconds)
    if piece.name == BASELINE:
        (out / BASELINE).write_text(str(folder), encoding="utf-8")
    found = check(piece, folder, Path((out / BASELINE).read_text(encoding="utf-8")), device)
    return Verdict(found.piece, found.verdict, found.words, seconds)


def markdown(verdicts: Sequence[Verdict], device: str) -> str:
    """The table of all pieces."""
    head = f"# GPU check\n\nDevice: {device}\n\n| piece | verdict | seconds | |\n|---|---|---:|---|\n"
    return head + "".join(f"| {v.piece} | {v.verdict} | {v.seconds:.1f} | {v.words} |\n" for v in verdicts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pieces; 0 if none failed, 1 if one did, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m runner.gpu_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="with the CPU in the GPU's place")
    parser.add_argument("--list", action="store_true", help="print what would run, and run nothing")
    parser.add_argument("--only", metavar="PIECE,…", help="these pieces; the baseline is run where it is missing")
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu_check"), help="folder of runs and results")
    options = parser.parse_args(arguments)
    found = visible_devices()
    device, devices = ("cpu", 2) if options.dry_run else ("cuda", len(found))
    if not devices and not options.list:
        print("no GPU is visible; --dry-run puts the CPU in its place", file=sys.stderr)
        return 2
    names = options.only.split(",") if options.only else [piece.name for piece in PIECES]
    unknown = sorted(set(names) - {piece.name for piece in PIECES})
    if unknown:
        print(f"there is no piece {', '.join(unknown)}: --list names them", file=sys.stderr)
        return 2
    if options.list:
        for piece in PIECES:
            print(f"{piece.name:24}", " ".join(command(piece, options.out / piece.name, device, min(2, devices or 1))))
        return 0
    words = "CPU (dry run)" if options.dry_run else ", ".join(one.name for one in found)
    return _run_all(names, options.out / device, device, devices, words)


def _run_all(names: Sequence[str], out: Path, device: str, devices: int, words: str) -> int:
    out.mkdir(parents=True, exist_ok=True)
    file, known = out / "results.json", {}
    if file.exists():
        known = {one["piece"]: Verdict(**one) for one in json.loads(file.read_text(encoding="utf-8"))["pieces"]}
    for piece in PIECES:
        passed = piece.name in known and known[piece.name].verdict == "passed"
        if passed or piece.name not in {*names, BASELINE}:
            continue
        verdict = known[piece.name] = run_piece(piece, out, device, devices)
        print(f"{verdict.verdict:8} {verdict.piece:24} {verdict.seconds:6.1f} s  {verdict.words}", flush=True)
        ordered = [known[one.name] for one in PIECES if one.name in known]
        content = {"device": words, "pieces": [asdict(one) for one in ordered]}
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        (out / "results.md").write_text(markdown(ordered, words), encoding="utf-8")
        if piece.name == BASELINE and verdict.verdict != "passed":
            break
    failed = [one.piece for one in known.values() if one.verdict == "failed"]
    print(f"{file}: " + (f"failed: {', '.join(failed)}" if failed else "nothing failed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
