"""A Slurm of two namespaces: one controller here, a slurmd in each node.

Debian's packages, no systemd, no accounting.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.rigs.nodes import NET, NodesRig

CONF = """ClusterName=rig
SlurmctldHost={host}({net}.254)
SlurmUser=root
SlurmctldPort=17000
SlurmdPort=17001
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/linux
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=2,sched_min_interval=0
ReturnToService=2
KillWait=5
MinJobAge=600
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.%n.log
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmctldTimeout=30
SlurmdTimeout=20
NodeName=node1 NodeAddr={net}.1 CPUs=2 RealMemory=8000
NodeName=node2 NodeAddr={net}.2 CPUs=2 RealMemory=8000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=10 MaxTime=UNLIMITED State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=UNLIMITED State=UP
"""


class SlurmRig:
    """A running Slurm; `environment` makes the commands find it."""

    def __init__(self, folder: Path, nodes: NodesRig) -> None:
        self.folder, self.nodes = folder, nodes
        for name in ("state", "spool/node1", "spool/node2"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        conf = folder / "slurm.conf"
        conf.write_text(CONF.format(host=socket.gethostname().partition(".")[0], net=NET, dir=folder))
        self.environment = {"SLURM_CONF": str(conf), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
        self._munge()
        self._run("slurmctld", "-c")
        for number in (1, 2):
            self.start(number)
        until = time.monotonic() + 30
        while self.say("sinfo", "-h", "-N", "-p", "low", "-o", "%t").split() != ["idle", "idle"]:
            assert time.monotonic() < until, self.say("sinfo")
            time.sleep(0.1)

    def _run(self, *words: str) -> None:
        subprocess.run(words, check=True, env={**os.environ, **self.environment}, capture_output=True)

    def _munge(self) -> None:
        for path, mode in (("/run/munge", 0o755), ("/var/lib/munge", 0o700), ("/var/log/munge", 0o700)):
            Path(path).mkdir(parents=True, exist_ok=True)
            shutil.chown(path, "munge", "munge")
            os.chmod(path, mode)
        if subprocess.run(["munge", "-n"], capture_output=True).returncode:
            words = ("setpriv", "--reuid", "munge", "--regid", "munge", "--clear-groups", "/usr/sbin/munged")
            subprocess.run(words, check=True)

    def start(self, number: int) -> None:
        """Start a node's slurmd."""
        words = ("env", f"SLURM_CONF={self.environment['SLURM_CONF']}", "/usr/sbin/slurmd", "-N", f"node{number}")
        subprocess.run(self.nodes.command(number, *words), check=True, capture_output=True)

    def say(self, *words: str) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(words, env={**os.environ, **self.environment}, capture_output=True, text=True)
        return (done.stdout + done.stderr).strip()

    def start_again_now(self, job: int) -> None:
        """Slurm waits 121 s before it starts a requeued job: sooner (not within the same second, or
        the job is lost).
        """
        time.sleep(3)
        self.say("scontrol", "update", f"JobId={job}", "StartTime=now")

    def down(self) -> None:
        """End it all; the nodes' slurmd end with the nodes."""
        self.say("scancel", "-u", "root")
        pid = self.folder / "slurmctld.pid"
        if pid.exists():
            os.kill(int(pid.read_text()), 15)
