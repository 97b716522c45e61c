"""One cell at a time on the same devices of one machine, also of different sweeps."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from runner import machine
from runner.config.schema import RunConfig
from runner.launch.process_signals import Stopping

POLL_SECONDS = 0.2
_held_here: set[Path] = set()  # by this process: a trial inside a cell's turn needs no turn of its own


@contextlib.contextmanager
def turn(config: RunConfig, stop: Stopping, console: Console) -> Iterator[bool]:
    """Hold the devices of a resolved configuration; yields False where the wait was ended by a signal.

    Another sweep's cell on any of them is waited for, with one line that says so. The kernel lets go of the
    devices when this process ends, in whatever way.
    """
    with contextlib.ExitStack() as stack:
        held = all(_hold(stack, path, stop, console) for path in _lock_files(config))
        yield held


def _lock_files(config: RunConfig) -> list[Path]:
    """One file a device, in an order that every sweep takes them in."""
    folder = Path(tempfile.gettempdir()) / f"finetune-runner-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    devices = (
        [f"gpu{device.index}" for device in machine.visible_devices(config.launcher.gpu_ids)]
        if config.launcher.device == "cuda"
        else ["cpu"]
    )
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]  # the folder may be shared between machines
    return [folder / f"{host}-{device}.lock" for device in sorted(devices)]


def _hold(stack: contextlib.ExitStack, path: Path, stop: Stopping, console: Console) -> bool:
    if path in _held_here:
        return True
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, handle)
    reported = False
    while not stop.asked:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not reported:
                console.print(
                    f"waiting for {path.stem.partition('-')[2]}: another sweep's cell is running on it "
                    f"({_holder(handle)})",
                    highlight=False,
                )
                reported = True
            time.sleep(POLL_SECONDS)
            continue
        _held_here.add(path)
        stack.callback(_held_here.discard, path)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()}".encode(), 0)
        return True
    return False


def _holder(handle: int) -> str:
    return os.pread(handle, 64, 0).decode(errors="replace") or "unknown process"
