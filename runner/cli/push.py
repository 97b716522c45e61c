"""`python -m runner push RUN_DIR --to user/name`: upload a run's model to the Hugging Face hub."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from runner import paths
from runner.errors import EXIT_COMPLETED, EXIT_FAILED, Problem, RequestError
from runner.memory.amounts import in_words
from runner.rundir.names import CONFIG_FILE
from runner.rundir.record import FILE, Record
from runner.secrets import redacted

MODEL = "model"
CARD = "README.md"


def main(arguments: Sequence[str]) -> int:
    """Upload, or show what would be uploaded; returns the exit status.

    Raises:
        RequestError: a folder without a model, a name that is none, no token.
    """
    options = _parser().parse_args(list(arguments))
    files = _files(options.run_dir)
    if options.to.count("/") != 1 or not all(options.to.split("/")):
        raise RequestError(Problem("--to", options.to, "this is no name on the hub", "use --to USER/NAME"))
    card = model_card(options.run_dir, options.to)
    if options.dry_run:
        for name, path in files.items():
            print(f"{name}: {in_words(path.stat().st_size)}")
        print(f"to https://huggingface.co/{options.to} ({'public' if options.public else 'private'})\n\n{card}")
        return EXIT_COMPLETED
    token = os.environ.get("HF_TOKEN") or _stored_token()
    if not token:
        why = "there is no token: HF_TOKEN is not set and nobody has logged in"
        raise RequestError(Problem("--to", options.to, why, "run `hf auth login` or set HF_TOKEN"))
    return _upload(options.to, files, card, token, private=not options.public)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runner push", description="Upload a run's model to the hub.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a run with a saved model")
    parser.add_argument("--to", required=True, metavar="USER/NAME", help="name on the hub; made where it is new")
    parser.add_argument("--public", action="store_true", help="make a new repository public (default: private)")
    parser.add_argument("--dry-run", action="store_true", help="show what would be uploaded, and the model card")
    return parser


def _files(run_dir: Path) -> dict[str, Path]:
    """What is uploaded: the model's files, the configuration and the record, by name in the repository."""
    folder = run_dir / MODEL
    if not (run_dir / FILE).is_file():
        raise RequestError(Problem("RUN_DIR", run_dir, "there is no record.json in it", "give the folder of a run"))
    model = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    if not model:
        why = "this run has saved no model (train.save_model=false, or it did not get that far)"
        raise RequestError(Problem("RUN_DIR", run_dir, why, "give a completed run with a model/ folder"))
    model.pop(CARD, None)  # the card is written anew
    return {**model, **{name: run_dir / name for name in (FILE, CONFIG_FILE) if (run_dir / name).is_file()}}


def model_card(run_dir: Path, name: str) -> str:
    """The model card: what was trained on what, how, and the scores as they stand in the record."""
    record = Record.read(run_dir).data
    config = record["config"]
    base = config["model"].get("hub_id") if config["model"].get("init") == "pretrained" else None
    data = config["dataset"].get("hub_id") or config["dataset"]["name"]
    generated = (
        " (a generated sample: these scores say nothing about a benchmark)" if config["dataset"]["generated"] else ""
    )
    head = ["---", "library_name: transformers", *([f"base_model: {base}"] if base else []), "---"]
    body = [
        f"# {name.partition('/')[2]}",
        f"{config['model']['name']}, trained on {data}{generated}; recipe {config['recipe']['name']}, "
        f"{record.get('method')}, status of the run: {record.get('status')}.",
        "| metric | value |\n|---|---:|\n"
        + "\n".join(f"| {metric} | {value:.4f} |" for metric, value in (record.get("metrics") or {}).items()),
        f"Made by `{record.get('command')}`; `config.yaml` and `record.json` hold the whole configuration and its "
        "record.",
    ]
    return redacted("\n".join(head) + "\n\n" + "\n\n".join(body) + "\n")


def _stored_token() -> str | None:
    try:
        return paths.hf_token_path().read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _upload(name: str, files: dict[str, Path], card: str, token: str, private: bool) -> int:
    from huggingface_hub import CommitOperationAdd, HfApi

    hub = HfApi(token=token)
    try:
        hub.create_repo(name, private=private, exist_ok=True)
        operations = [CommitOperationAdd(target, str(path)) for target, path in files.items() if path.suffix != ".json"]
        texts = {target: path for target, path in files.items() if path.suffix == ".json"}
        operations += [CommitOperationAdd(target, _redacted_json(path)) for target, path in texts.items()]
        operations.append(CommitOperationAdd(CARD, card.encode()))
        commit = hub.create_commit(name, operations, commit_message="A fine-tuned model and its record")
    except Exception as error:  # of the hub's client, of the network, of the server  # noqa: BLE001
        said = redacted(" ".join(str(error).split()))[:300]
        print(f"error: --to={name}: {type(error).__name__}: {said}")
        return EXIT_FAILED
    print(f"pushed     {len(operations)} files to {commit.commit_url}")
    return EXIT_COMPLETED


def _redacted_json(path: Path) -> bytes:
    """A JSON file without what is a secret today."""
    text = redacted(path.read_text(encoding="utf-8"))
    json.loads(text)
    return text.encode()
