"""What passes over a model class on the meta device found, kept between processes: an estimate asked for again imports
no torch.

Only the entry of a command opens it (`keep_under`); without that nothing is read or written. An answer is found by the
question, the versions of the libraries, and the source of what counts: an upgrade of either asks anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

FOLDER = "estimates"  # under the runner's cache; `runner cache clean` removes it
LIBRARIES = ("torch", "transformers")
COUNTING = ("memory/activations.py", "memory/architecture.py", "memory/emulation.py", "memory/facts.py")
PATCHES = ("compat/torch_attention.py", "compat/torch_storage.py")
Answer = TypeVar("Answer")

_folder: Path | None = None


def keep_under(cache: Path) -> None:
    """Read and write answers in a folder of the runner's cache from now on, where it can be written."""
    global _folder
    _folder = cache / FOLDER


def kept(question: object, kind: type[Answer], ask: Callable[[], Answer]) -> Answer:
    """The kept answer (a dataclass of `kind`) to a question with a complete `repr`, else a fresh one, which is kept.

    A file that is damaged, or cannot be written, costs the time of the pass.
    """
    if _folder is None:
        return ask()
    from pydantic import TypeAdapter

    form = TypeAdapter(kind)
    path = _folder / f"{hashlib.sha256(f'{_versions()} {kind.__name__} {question!r}'.encode()).hexdigest()}.json"
    with contextlib.suppress(OSError, ValueError):
        return form.validate_json(path.read_bytes())
    answer = ask()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, form.dump_json(answer))
    return answer


def _write(path: Path, content: bytes) -> None:
    """In one step: another process reads the whole answer or none. Of two writers either may win: they agree."""
    import tempfile

    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".partial", delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


@functools.lru_cache(maxsize=1)
def _versions() -> str:
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for name in (*COUNTING, *PATCHES):
        digest.update((package / name).read_bytes())
    return " ".join([*(f"{name} {version(name)}" for name in LIBRARIES), digest.hexdigest()])
