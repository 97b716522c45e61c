"""What Spark's distributors run in every rank. Light at its top: the environment has to stand
before torch is imported.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.clusters.spark import companion
from runner.record_format import RECORD_FILE

UNPACK_SECONDS = 600.0  # longest wait of a rank for its neighbour to fetch the files
# What a rank has from torchrun and Spark, and what the rendered files must not change.
THEIRS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


@dataclass(frozen=True)
class Invitation:
    """All that travels in Spark's task; everything else is fetched from the driver.

    Attributes:
        host, port: the driver's depot.
        store: HOST:PORT of the control store.
        run: unique name of this attempt.
        token: shown to the depot.
    """

    host: str
    port: int
    store: str
    run: str
    token: str


def run_rank(invitation: Invitation) -> str:
    """A rank's work; returns `completed` or `preempted`. One that fails ends its process, as under torch elastic.

    Raises:
        OSError: where the driver cannot be reached.
    """
    agent, arrived = os.getppid(), time.monotonic()
    folder = Path(tempfile.gettempdir()) / f"runner-{invitation.run}-{agent}"
    first = os.environ["LOCAL_RANK"] == "0"
    header, shared, told = _fetch(invitation, folder, first)
    run_dir = Path(header["run_dir"]) if shared else folder
    if first:
        _start_companion(invitation, agent, run_dir, header, shared)
    if not shared:
        if first:
            _settle(folder, header, told)
        _wait_for(folder / ".complete")
    os.environ.update(_environment(run_dir, header))
    from runner.rundir.opening import AGENT_START
    from runner.rundir.requests import CONTROL_STORE

    os.environ[AGENT_START] = str(arrived - header["elapsed"])
    os.environ[CONTROL_STORE] = invitation.store
    if os.environ["RANK"] == "0":
        _describe_machine(run_dir)

    from runner.launch.rank_process import rank_entry

    return rank_entry(str(run_dir), agent)


def _fetch(invitation: Invitation, folder: Path, first: bool) -> tuple[dict[str, Any], bool, dict[str, list[str]]]:
    """What the driver tells, whether the run folder is shared, and key → files of what came."""
    from runner.clusters.spark.travel import lacking

    with socket.create_connection((invitation.host, invitation.port), timeout=60) as connection:
        stream = connection.makefile("rwb")
        hello = {"token": invitation.token, "role": "rank", "host": socket.gethostname()}
        stream.write(json.dumps(hello).encode() + b"\n")
        stream.flush()
        header = json.loads(stream.readline())
        os.environ.update(header["environment"])
        shared = _shares(header["probe"])
        if header["needs_shared"] and not shared:
            raise OSError(f"{socket.gethostname()} does not share {header['run_dir']}")
        missing = [] if shared else lacking(header["sizes"])
        wanted = {"files": first and not shared, "inputs": missing}
        stream.write(json.dumps(wanted).encode() + b"\n")
        stream.flush()
        if wanted["files"]:
            connection.settimeout(None)
            folder.mkdir(mode=0o700)
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                archive.extractall(folder, filter="data")
    return header, shared, {key: header["names"][key] for key in missing}


def _shares(probe: dict[str, str]) -> bool:
    try:
        return Path(probe["file"]).read_text() == probe["content"]
    except OSError:
        return False


def _settle(folder: Path, header: dict[str, Any], told: dict[str, list[str]]) -> None:
    """Have the rendered files name this folder, and the inputs that came."""
    from runner import rundir
    from runner.clusters.spark.travel import placed

    for name in header["brought"]:
        path = folder / name
        path.write_text(path.read_text(encoding="utf-8").replace(header["run_dir"], str(folder)), encoding="utf-8")
    rundir.write_config(folder, placed(rundir.read_config(folder), told, folder))
    (folder / ".complete").touch()


def _wait_for(path: Path) -> None:
    until = time.monotonic() + UNPACK_SECONDS
    while not path.exists():
        if time.monotonic() > until:
            raise OSError(f"{path.parent} was not filled within {UNPACK_SECONDS:g} s")
        time.sleep(0.1)


def _environment(run_dir: Path, header: dict[str, Any]) -> dict[str, str]:
    from runner import rundir
    from runner.clusters.nodes.place import network_variables, own_address
    from runner.launch.job import rank_variables

    config = rundir.read_config(run_dir)
    variables = rank_variables(config, run_dir)
    kept = {name: value for name, value in variables.items() if name not in THEIRS}
    if config.launcher.device == "cuda":
        kept.pop("CUDA_VISIBLE_DEVICES", None)  # which of this machine's it has is Spark's to say
    return kept | network_variables(own_address(header["host"], 0), config.cluster.interface)


def _describe_machine(run_dir: Path) -> None:
    """The record was opened on the driver; the figures are this machine's."""
    from runner import machine, rundir
    from runner.rundir.record import Record

    hardware = machine.description(rundir.read_config(run_dir).launcher.gpu_ids)
    Record.read(run_dir).update(hardware=hardware)


def _start_companion(invitation: Invitation, agent: int, folder: Path, header: dict[str, Any], shared: bool) -> None:
    request = {
        "driver": [invitation.host, invitation.port],
        "token": invitation.token,
        "agent": agent,
        "folder": str(folder),
        "private": not shared,
        "run_dir": header["run_dir"],
        "brought": [*(name for name in header["brought"] if name != RECORD_FILE), "inputs", ".complete"],
        "leftovers": _leftovers(),
        "silence": header["silence"],
    }
    process = subprocess.Popen(
        [sys.executable, "-I", companion.__file__],  # quick: it needs nothing of what is installed
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.close()


def _leftovers() -> list[str]:
    """Folders that torchrun and the distributor make beside ours, and leave when they are killed."""
    place = Path(tempfile.gettempdir())
    made = [Path(sys.argv[0]).parent, Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))]
    tops = {place / path.relative_to(place).parts[0] for path in made if path != place and path.is_relative_to(place)}
    return [str(path) for path in tops if path != place]
