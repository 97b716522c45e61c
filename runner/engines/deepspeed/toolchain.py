"""What the doctor says of DeepSpeed's compiled ops: which can be built, which are built, which builds were left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from runner import machine, paths
from runner.engines.deepspeed import ops
from runner.machine import Finding

STALE_LOCK_SECONDS = 900.0
TOPIC = "DeepSpeed ops"
_NEEDED_FOR = {"cpu_adam": "offload=cpu", "async_io": "offload=nvme"}
_PACKAGES = {"g++": "g++", "ninja": "ninja-build", "libaio.h": "libaio-dev"}  # of Debian


def findings() -> Iterator[Finding]:
    """Ops that can be built, that cannot although an option needs them, and locks of builds that were killed."""
    built = sorted(_built())
    lacking = {op: _lacking(op) for op in ops.OPS}
    can = [op for op, lacks in lacking.items() if not lacks]
    yield Finding(
        "ok",
        TOPIC,
        f"can be built: {', '.join(can) or 'none'}" + (f"; already built: {', '.join(built)}" if built else ""),
    )
    for op, choice in _NEEDED_FOR.items():
        if lacking[op] and op not in built:
            why = f"{op} cannot be built (lacks {', '.join(lacking[op])}), so {choice} cannot use it"
            yield Finding("warning", TOPIC, why, _fix(op, lacking[op]))
    for lock in _stale_locks():
        why = f"{lock} was left by a build that was killed: later builds wait for it"
        yield Finding("warning", TOPIC, why, f"rm {lock}")


def _lacking(op: str) -> list[str]:
    lacks = ops.lacking(op, device="cuda")
    return [*lacks, "a CUDA build of torch"] if op == "fused_adam" and machine.torch_cuda() is None else lacks


def _fix(op: str, lacks: list[str]) -> str:
    fix = "apt install " + " ".join(_PACKAGES[name] for name in lacks if name in _PACKAGES)
    return fix + (", or offload.force_cpu_adam=false (slower)" if op == "cpu_adam" else "")


def _extension_folders() -> list[Path]:
    """Where ops are built: DeepSpeed's variable, the runner's cache, torch's default."""
    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    default = Path("~/.cache/torch_extensions").expanduser()
    return [Path(named)] if named else [paths.cache_dir(None) / ops.CACHE, default]


def _built() -> set[str]:
    return {path.stem for folder in _extension_folders() if folder.is_dir() for path in folder.rglob("*.so")}


def _stale_locks() -> list[Path]:
    """Lock files older than any build takes (the longest op needs about two minutes)."""
    locks = [path for folder in _extension_folders() if folder.is_dir() for path in folder.rglob(ops.LOCK)]
    return [path for path in locks if time.time() - path.stat().st_mtime > STALE_LOCK_SECONDS]
