"""`manifest.json` of a checkpoint: where the run stood, how it ran, and every file with its size and checksum.

It is written last, so a folder without one is torn; a file that is missing, shorter or changed is found before anything
is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from runner.regular_files import read_regular

FILE = "manifest.json"
FORMAT = 1
_BLOCK = 2**20
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class FileFacts:
    """A file's length in bytes and its SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself.

    Attributes:
        step: optimizer steps done.
        epoch, window: position in the data: epoch from 0, optimizer steps done in it.
        evaluated: whether the evaluation after its epoch is in it.
        metric: value of the recipe's metric at that evaluation.
        world_size, launcher, zero_stage: what the files are cut for.
        micro_batch_size, gradient_accumulation_steps: with the world size, the batch triple.
        files: name inside the folder → facts.
    """

    step: int
    epoch: int
    window: int
    evaluated: bool
    metric: float | None
    world_size: Count
    launcher: str
    zero_stage: int | None
    micro_batch_size: Count
    gradient_accumulation_steps: Count
    config_hash: str
    written_at: str
    versions: dict[str, str] = field(default_factory=dict)
    files: dict[str, FileFacts] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(facts.bytes for facts in self.files.values())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it, to the disk, not only to the cache."""
    content = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1, allow_nan=False) + "\n"
    with open(folder / FILE, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder.

    Raises:
        ValueError: when there is none, or it is none of ours; the text says which.
    """
    try:
        content: dict[str, Any] = json.loads(read_regular(folder / FILE))
        if content.pop("format") != FORMAT:
            raise ValueError("its manifest has an unknown format")
        return TypeAdapter(Manifest).validate_json(json.dumps(content), strict=True)
    except OSError as error:
        raise ValueError(f"it has no readable manifest ({error.strerror})") from None
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(f"its manifest is damaged at {key}") from None
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("its manifest is damaged") from None


def damage(folder: Path, checksums: bool = True) -> str | None:
    """What is wrong with a checkpoint, in words; None when it is whole.

    Args:
        checksums: read every file; otherwise only names and sizes are compared.
    """
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        return str(error)
    for name, facts in manifest.files.items():
        found = _file_damage(folder / name, facts, checksums)
        if found:
            return f"{name} {found}"
    return None


def _file_damage(path: Path, facts: FileFacts, checksums: bool) -> str | None:
    try:
        size = path.stat().st_size
        if size != facts.bytes:
            return f"has {size} bytes instead of {facts.bytes}"
        if checksums and sha256_of(path) != facts.sha256:
            return "has another checksum than when it was written"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
