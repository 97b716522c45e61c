"""DeepSpeed's compiled ops, built ahead: in one process, with a message and a time limit, before any rank waits for
them.

torch guards a build folder with a file named `lock` that says nothing about its owner. A build that is killed
leaves it, and every later process waits for it silently. So each environment has a folder of its own, one
runner at a time builds in it (a kernel lock, which no kill can leave behind), and what it finds locked by then was
left.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import machine, paths
from runner.compat.deepspeed_ops import use_loaded
from runner.config.schema import RunConfig
from runner.engines.base import BuildFailed, OpBuild
from runner.engines.deepspeed.config import offload_section, on_cpu_adam

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK = "lock"  # torch.utils.file_baton's
OWN_LOCK = ".building"
CACHE = "torch_extensions"  # under the cache folder; each environment has a folder in it
NAMES = "RUNNER_BUILD_OPS"
POLL_SECONDS = 0.5
PREINSTALLED = {
    "cpu_adam": "adam/cpu_adam_op*.so",
    "fused_adam": "adam/fused_adam_op*.so",
    "async_io": "aio/async_io_op*.so",
}


@dataclass(frozen=True)
class Op:
    """What building takes.

    Attributes:
        seconds: cold, on two cores (measured).
        compilers: programs on PATH.
        header: of a library that the system has to have.
    """

    seconds: int
    compilers: tuple[str, ...]
    header: str | None = None


# Which compilers DeepSpeed's builder of an op calls, and a header it also needs (op_builder/*.py of 0.19.8).
OPS = {
    "cpu_adam": Op(40, ("g++", "ninja")),
    "fused_adam": Op(40, ("g++", "ninja", "nvcc")),
    "async_io": Op(150, ("g++", "ninja"), "libaio.h"),
}


def needed_ops(config: RunConfig, user_json: dict[str, Any] | None = None) -> list[str]:
    """Ops that the ranks of a run will load."""
    if config.mode != "train":
        return []
    targets = (offload_section(config).optimizer, offload_section(config).params)
    needed = ["cpu_adam"] if on_cpu_adam(config) else []
    if not needed and config.launcher.device == "cuda" and _asks_for_fused_adam(user_json):
        needed = ["fused_adam"]
    return needed + (["async_io"] if "nvme" in targets else [])


def _asks_for_fused_adam(user_json: dict[str, Any] | None) -> bool:
    block = (user_json or {}).get("optimizer") or {}
    return str(block.get("type", "")).lower() in ("adam", "adamw") and not block.get("params", {}).get("torch_adam")


def lacking(op: str, device: str = "cpu") -> list[str]:
    """What this machine lacks to build an op; an op that was installed with DeepSpeed lacks nothing."""
    if _preinstalled(op):
        return []
    compilers = [name for name in OPS[op].compilers if name != "nvcc" or device == "cuda"]
    lacks = [name for name in compilers if shutil.which(name) is None]
    header = OPS[op].header
    if header and not any((folder / header).is_file() for folder in _include_folders()):
        lacks.append(header)
    return lacks


def _preinstalled(op: str) -> bool:
    found = importlib.util.find_spec("deepspeed")
    return (
        found is not None
        and found.origin is not None
        and any((Path(found.origin).parent / "ops").glob(PREINSTALLED[op]))
    )


def _include_folders() -> list[Path]:
    """Where a compiler looks for headers: the system's folders, and those named in its variables."""
    named = [
        part for name in ("CPATH", "CPLUS_INCLUDE_PATH") for part in os.environ.get(name, "").split(os.pathsep) if part
    ]
    named += re.findall(r"-I\s*(\S+)", os.environ.get("CFLAGS", ""))
    return [Path("/usr/include"), Path("/usr/local/include"), *map(Path, named)]


def extensions_dir(cache_dir: str | None, device: str) -> Path:
    """Build folder of this environment: another Python, torch, DeepSpeed, compiler, ninja or processor gets another
    one.
    """
    return paths.cache_dir(cache_dir) / CACHE / _environment(device)


@lru_cache(maxsize=4)
def _environment(device: str) -> str:
    facts = [platform.python_version(), device, machine.cpu_name()]
    for package in ("torch", "deepspeed"):
        try:
            facts.append(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            facts.append("")
    facts += [_stamp(name) for name in ("g++", "ninja", *(["nvcc"] if device == "cuda" else []))]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def _stamp(program: str) -> str:
    """A program on PATH, distinguished from another version of it without starting it."""
    found = shutil.which(program)
    return "" if found is None else f"{os.path.realpath(found)} {os.stat(found).st_mtime_ns}"


class OpBuilder:
    """Builds what a run needs before its ranks start."""

    def __init__(self, config: RunConfig, around: OpBuild) -> None:
        self.config, self.host, self.run_dir, self.environment = config, around.host, around.run_dir, around.environment
        self.watch, self.say = around.watch, around.say

    def build(self, needed: list[str]) -> dict[str, float]:
        """Build what is not built yet; returns seconds by op. Two runners never build at once in one folder.

        Raises:
            BuildFailed: with the reason; also after `launcher.start_timeout_seconds`.
        """
        self._folder = extensions_dir(self.config.cache_dir, self.config.launcher.device)
        missing = [op for op in needed if not _preinstalled(op) and not is_built(self._folder, op)]
        if not missing:
            return {}
        self._folder.mkdir(parents=True, exist_ok=True)
        self._deadline = time.monotonic() + self.config.launcher.start_timeout_seconds
        own = self._turn(", ".join(missing))
        try:
            self._clear_locks()
            missing = [op for op in missing if not is_built(self._folder, op)]
            return self._build(missing) if missing else {}
        finally:
            own.release()

    def _turn(self, what: str) -> BaseFileLock:
        """Wait until no other runner builds here; returns the lock held."""
        import filelock

        own, reported = filelock.FileLock(self._folder / OWN_LOCK), False
        while True:
            try:
                own.acquire(timeout=0)
                return own
            except filelock.Timeout:
                if not reported:
                    self.say(f"waiting    another run is building {what} in {self._folder}")
                    reported = True
            self._wait(f"another run has been building {what} in {self._folder} for too long")

    def _wait(self, why: str) -> None:
        if time.monotonic() > self._deadline:
            raise BuildFailed(f"{why} (launcher.start_timeout_seconds)")
        self.watch()
        time.sleep(POLL_SECONDS)

    def _clear_locks(self) -> None:
        """Remove locks whose owner is gone. Only ranks started by hand can be building now: then a compiler works in
        the folder.
        """
        for lock in sorted(self._folder.glob(f"*/{LOCK}")):
            while lock.exists() and _somebody_works_in(lock.parent):
                self._wait(f"{lock} is held by a compiler that still works")
            if lock.exists():
                age = max(0.0, time.time() - lock.stat().st_mtime)
                lock.unlink(missing_ok=True)
                self.say(
                    f"removed    {lock}: left {age:.0f} s ago by a build that was killed; every later build would "
                    "have waited for it"
                )

    def _build(self, missing: list[str]) -> dict[str, float]:
        words, estimate = ", ".join(missing), sum(OPS[op].seconds for op in missing)
        self.say(
            f"building   {words}, once for this environment, about {estimate} s ({self._folder}; log "
            f"{self.run_dir / 'logs' / 'launch.log'})"
        )
        try:
            outcome = self.host.run(
                "build", self.run_dir, {**self.environment, NAMES: ",".join(missing)}, self._watched(words)
            )
        finally:
            for op in missing:
                (self._folder / op / LOCK).unlink(
                    missing_ok=True
                )  # nobody else builds here: a build that was killed left it
        if outcome.get("status") != "completed":
            raise BuildFailed(outcome.get("error") or f"building {words} ended without a message")
        self.say("built      " + ", ".join(f"{op} in {seconds:.0f} s" for op, seconds in outcome["seconds"].items()))
        return dict(outcome["seconds"])

    def end_build(self) -> None:
        """End the job and its compilers: ninja gives each a process group of its own, which no signal to the job's
        reaches.
        """
        import psutil

        job = self.host.job
        below = psutil.Process(job).children(recursive=True) if job is not None and psutil.pid_exists(job) else []
        self.host.kill_job()
        for process in below:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _watched(self, words: str) -> Callable[[], None]:
        def watched() -> None:
            try:
                self.watch()
            except BaseException:
                self.end_build()
                raise
            if time.monotonic() > self._deadline:
                self.end_build()
                raise BuildFailed(
                    f"building {words} took longer than "
                    f"launcher.start_timeout_seconds={self.config.launcher.start_timeout_seconds:g}"
                )

        return watched


def is_built(folder: Path, op: str) -> bool:
    """Whether an op lies there, finished and not locked."""
    return (folder / op / f"{op}.so").is_file() and not (folder / op / LOCK).exists()


def lock_of(folder: Path) -> Path:
    """Held while an op of an environment's folder is being built."""
    return folder / OWN_LOCK


def remove_built(root: Path) -> str:
    """Remove the ops of every environment, each under its lock; returns the name of one in which a build goes on."""
    import filelock

    busy = ""
    for folder in (path for path in root.iterdir() if path.is_dir()):
        try:
            with filelock.FileLock(folder / OWN_LOCK, timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
        except filelock.Timeout:
            busy = folder.name
    return busy


def _somebody_works_in(folder: Path) -> bool:
    import psutil

    return any(process.info["cwd"] == str(folder) for process in psutil.process_iter(["cwd"]))


def build_ops(run_dir: Path) -> dict[str, Any]:
    """In a job of the host: build the ops named in the environment, one after the other."""
    import deepspeed.ops.op_builder as builders

    made = {"cpu_adam": "CPUAdamBuilder", "fused_adam": "FusedAdamBuilder", "async_io": "AsyncIOBuilder"}
    seconds: dict[str, float] = {}
    for op in os.environ[NAMES].split(","):
        began = time.monotonic()
        try:
            getattr(builders, made[op])().load(verbose=True)
        except Exception as error:  # noqa: BLE001
            text = (
                " ".join(line for line in str(error).splitlines() if "error" in line.lower())[:300] or str(error)[:300]
            )
            return {
                "status": "failed",
                "error": f"{op} could not be built ({text or type(error).__name__}); log "
                f"{run_dir / 'logs' / 'launch.log'}",
            }
        seconds[op] = time.monotonic() - began
    sys.stdout.flush()
    return {"status": "completed", "seconds": seconds}


def use_built(config: RunConfig) -> None:
    """In a rank: load the ops that were built ahead, and tell DeepSpeed so.

    Its own way would start ninja in every rank, behind torch's lock; ninja builds anew whenever its notes about the
    folder do not please it. async_io, which has to be loaded together with another library, is left to DeepSpeed.
    """
    folder = extensions_dir(config.cache_dir, config.launcher.device)
    mine = [op for op in needed_ops(config) if op != "async_io" and not _preinstalled(op) and is_built(folder, op)]
    if not mine:
        return
    with contextlib.suppress(OSError):
        os.utime(folder)  # `runner cache prune` keeps what was used lately
    for op in mine:
        spec = importlib.util.spec_from_file_location(op, folder / op / f"{op}.so")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        use_loaded(op, module)
