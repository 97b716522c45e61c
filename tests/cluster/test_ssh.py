"""`cluster.hosts=` over a real ssh between two nodes; what travels is on no command line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.conftest import OnNodes
from tests.conftest import ROOT, cli_environment
from tests.interrupting import LAUNCHERS, SHORT

SECRET = "hf_" + "Zq9" * 11


def ssh_between_nodes(nodes: OnNodes, folder: Path) -> Path:
    """An sshd in node 2, and an `ssh` that finds its key; returns the folder to put on PATH."""
    key, host_key, programs = folder / "key", folder / "host_key", folder / "bin"
    programs.mkdir()
    for file in (key, host_key):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    os.makedirs("/run/sshd", exist_ok=True)
    options = [f"-oHostKey={host_key}", f"-oAuthorizedKeysFile={key}.pub", "-oStrictModes=no", "-oUsePAM=no"]
    options += ["-oPermitRootLogin=yes", f"-oPidFile={folder / 'sshd.pid'}"]
    subprocess.run(nodes.rig.command(2, "/usr/sbin/sshd", *options), check=True)
    script = programs / "ssh"
    script.write_text(
        f"#!/bin/sh\nexec /usr/bin/ssh -i {key} -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null"
        ' -oLogLevel=ERROR "$@"\n'
    )
    script.chmod(0o755)
    return programs


def test_hosts_over_ssh_and_a_secret_that_nobody_sees(nodes: OnNodes, tmp_path: Path) -> None:
    """The head's name for node 2 is its address: each node's own name is 127.0.1.1 here."""
    programs = ssh_between_nodes(nodes, tmp_path)
    run_dir = tmp_path / "run"
    options = (*LAUNCHERS["ddp"], *SHORT, "launcher.num_processes=1", "launcher.omp_num_threads=1", "train.epochs=60")
    environment = cli_environment(HF_TOKEN=SECRET, PATH=f"{programs}:{os.environ['PATH']}")
    place = ("launcher.num_nodes=2", "cluster=nodes", "cluster.hosts=[node1,10.77.0.2]", f'hydra.run.dir="{run_dir}"')
    process = nodes.rig.popen(1, sys.executable, "-m", "runner", *options, *place, env=environment, cwd=ROOT)
    nodes.started.append(process)
    seen: list[str] = []
    while process.poll() is None:
        seen += [line for number in (1, 2) for line in nodes.rig.processes(number)]
        time.sleep(0.3)
    ((code, text),) = nodes.end(process)
    assert code == 0, text
    assert any("runner.launch.node" in line for line in seen)
    assert not [line for line in seen if SECRET in line]
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    assert (run_dir / "record.json") in files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
