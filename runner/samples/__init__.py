"""Small generated data sets and tokenizers that ship with the runner, for runs without a network.

They are made by `python -m runner.samples.generate`; README.md beside this file says what they are not.
"""

from pathlib import Path

FOLDER = Path(__file__).parent


def data_files(name: str) -> dict[str, Path]:
    """Give the JSON-lines file of each split of the sample `name` (paraphrases, dialogues, stories)."""
    return {split: FOLDER / name / f"{split}.jsonl" for split in ("train", "validation", "test")}


def tokenizer_folder(name: str) -> Path:
    """Give the folder of a bundled tokenizer (deberta_tiny, blenderbot_tiny, gpt2_tiny)."""
    return FOLDER / "tokenizers" / name
