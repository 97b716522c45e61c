"""Building ahead: who may build, what is cleared, what is said, and when it is given up. The host is pretended; a real
build is in tests/cli.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import filelock
import pytest

from runner.config.schema import RunConfig
from runner.engines.base import BuildFailed, OpBuild
from runner.engines.deepspeed import ops
from runner.engines.deepspeed.ops import OpBuilder
from runner.engines.deepspeed.swap_folder import swap_files, swap_folder


class PretendedHost:
    """Takes a build job and does what a test asks for."""

    def __init__(self, folder: Path, outcome: dict[str, Any] | None, seconds: float = 0.0) -> None:
        self._folder, self._outcome, self._seconds = folder, outcome, seconds
        self.asked: list[str] = []
        self.killed = False
        self.job: int | None = None

    def run(self, op: str, run_dir: Path, environment: dict[str, str], while_running: Any) -> dict[str, Any]:
        assert op == "build"
        self.asked.append(environment[ops.NAMES])
        (self._folder / "cpu_adam").mkdir(parents=True, exist_ok=True)
        (self._folder / "cpu_adam" / "lock").touch()
        until = time.monotonic() + self._seconds
        while_running()
        while time.monotonic() < until:
            time.sleep(0.01)
            while_running()
        if self._outcome is None:
            (self._folder / "cpu_adam" / "cpu_adam.so").touch()
            return {"status": "completed", "seconds": {"cpu_adam": 1.5}}
        return self._outcome

    def kill_job(self) -> None:
        self.killed = True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(ops, "_preinstalled", lambda op: False)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig.model_validate(
        {"cache_dir": str(tmp_path / "cache"), "launcher": {"device": "cpu", "start_timeout_seconds": 5}}
    )


@pytest.fixture
def folder(config: RunConfig) -> Path:
    return ops.extensions_dir(config.cache_dir, "cpu")


def ahead(config: RunConfig, host: PretendedHost, said: list[str]) -> OpBuilder:
    return OpBuilder(config, OpBuild(host, Path("/run"), {}, lambda: None, said.append))


def test_built_once_with_a_message_before_and_after(config: RunConfig, folder: Path) -> None:
    host, said = PretendedHost(folder, None), []
    assert ahead(config, host, said).build(["cpu_adam"]) == {"cpu_adam": 1.5}
    assert said[0].startswith("building   cpu_adam, once for this environment, about 40 s")
    assert said[1] == "built      cpu_adam in 2 s"
    assert ahead(config, host, said).build(["cpu_adam"]) == {}
    assert host.asked == ["cpu_adam"]


def test_a_left_lock_is_named_with_its_age_and_removed(config: RunConfig, folder: Path) -> None:
    (folder / "cpu_adam").mkdir(parents=True)
    (folder / "cpu_adam" / "cpu_adam.so").touch()
    lock = folder / "cpu_adam" / "lock"
    lock.touch()
    os.utime(lock, (time.time() - 3600,) * 2)
    host, said = PretendedHost(folder, None), []
    assert ahead(config, host, said).build(["cpu_adam"]) == {}
    assert said == [
        f"removed    {lock}: left 3600 s ago by a build that was killed; every later build would have waited for it"
    ]
    assert not host.asked


def test_a_lock_with_a_working_compiler_is_waited_for(config: RunConfig, folder: Path) -> None:
    """Ranks that were started by hand build without the runner's lock."""
    (folder / "cpu_adam").mkdir(parents=True)
    (folder / "cpu_adam" / "lock").touch()
    compiler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], cwd=folder / "cpu_adam")
    try:
        config.launcher.start_timeout_seconds = 0.3
        with pytest.raises(BuildFailed, match="compiler that still works"):
            ahead(config, PretendedHost(folder, None), []).build(["cpu_adam"])
        assert (folder / "cpu_adam" / "lock").exists()
    finally:
        compiler.kill()
        compiler.wait()


def test_two_runners_never_build_at_once(config: RunConfig, folder: Path) -> None:
    folder.mkdir(parents=True)
    other = filelock.FileLock(folder / ops.OWN_LOCK, thread_local=False)  # released by another thread
    other.acquire()
    host, said = PretendedHost(folder, None), []

    def finish() -> None:
        (folder / "cpu_adam").mkdir()
        (folder / "cpu_adam" / "cpu_adam.so").touch()
        other.release()

    timer = threading.Timer(0.2, finish)
    timer.start()
    assert ahead(config, host, said).build(["cpu_adam"]) == {}
    timer.join()
    assert said[0].startswith("waiting    another run is building cpu_adam in ")
    assert not host.asked


def test_a_build_that_takes_too_long_is_ended_and_leaves_no_lock(config: RunConfig, folder: Path) -> None:
    config.launcher.start_timeout_seconds = 0.1
    host = PretendedHost(folder, None, seconds=5)
    with pytest.raises(BuildFailed, match=r"took longer than launcher.start_timeout_seconds=0.1"):
        ahead(config, host, []).build(["cpu_adam"])
    assert host.killed
    assert not (folder / "cpu_adam" / "lock").exists()


def test_a_request_to_stop_ends_the_build(config: RunConfig, folder: Path) -> None:
    class Asked(Exception):
        pass

    def watch() -> None:
        raise Asked

    host = PretendedHost(folder, None, seconds=5)
    with pytest.raises(Asked):
        OpBuilder(config, OpBuild(host, Path("/run"), {}, watch, lambda text: None)).build(["cpu_adam"])  # type: ignore[arg-type]
    assert host.killed
    assert not (folder / "cpu_adam" / "lock").exists()


def test_a_build_that_fails_says_why(config: RunConfig, folder: Path) -> None:
    host = PretendedHost(folder, {"status": "failed", "error": "cpu_adam could not be built (fatal error: x.h)"})
    with pytest.raises(BuildFailed, match=r"fatal error: x\.h"):
        ahead(config, host, []).build(["cpu_adam"])
    assert not (folder / "cpu_adam" / "lock").exists()


def test_swap_files_go_with_the_run(config: RunConfig, tmp_path: Path) -> None:
    """However it ends, and only its own."""
    config.offload.nvme_path = str(tmp_path / "nvme")
    mine, other = (
        swap_folder(config.offload.nvme_path, tmp_path / "a"),
        swap_folder(config.offload.nvme_path, tmp_path / "b"),
    )
    other.mkdir(parents=True)
    with pytest.raises(RuntimeError), swap_files(config, tmp_path / "a"):
        (mine / "zero_stage_3").mkdir()
        (mine / "zero_stage_3" / "0.swp").touch()
        raise RuntimeError
    assert not mine.exists()
    assert other.exists()
