"""Starting ranks by Spark's distributors, and watching over them from the driver."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from runner import rundir
from runner.clusters.nodes.control import Store
from runner.clusters.nodes.ssh import PREFIXES
from runner.clusters.spark.depot import Depot
from runner.clusters.spark.rank import Invitation, run_rank
from runner.clusters.spark.session import Session, first_line
from runner.clusters.spark.travel import inputs_of
from runner.config import plan
from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError
from runner.execution import Launch
from runner.launch.host_client import Host
from runner.launch.host_pool import needs_no_hub
from runner.launch.process_signals import STOPPING
from runner.rundir.failure import Failure, KnownFailure
from runner.rundir.rank_errors import errors_of_attempt
from runner.rundir.requests import STOP_FILE
from runner.trackers import credential_variables

if TYPE_CHECKING:
    from pyspark.ml.torch.distributor import TorchDistributor

POLL_SECONDS = 0.1
OTHERS_END_SECONDS = 6.0  # from a rank's own error to the others' ends
RENDERED = (".yaml", ".json", ".sh")


def distributor(config: RunConfig, run_dir: Path | None, is_local: bool) -> TorchDistributor:
    """Spark's own: DeepspeedTorchDistributor where the engine has rendered a DeepSpeed JSON, else TorchDistributor.

    Raises:
        RequestError: where Spark refuses it (GPUs).
    """
    from pyspark.ml.deepspeed.deepspeed_distributor import DeepspeedTorchDistributor
    from pyspark.ml.torch.distributor import TorchDistributor

    ranks, use_gpu = int(config.launcher.num_processes), config.launcher.device == "cuda"
    local = config.cluster.local_mode or is_local
    try:
        if run_dir is not None and (run_dir / rundir.DEEPSPEED_FILE).exists():
            return DeepspeedTorchDistributor(
                numGpus=ranks, nnodes=config.launcher.num_nodes, localMode=local, useGpu=use_gpu
            )
        return TorchDistributor(num_processes=plan.world_size(config), local_mode=local, use_gpu=use_gpu)
    except (RuntimeError, ValueError) as error:
        raise RequestError(
            Problem("launcher.device", config.launcher.device, str(error), "use launcher.device=cpu")
        ) from None


class SparkLaunch(Launch):
    """The ranks of one run under Spark.

    Args:
        probe: a file of the run folder and its content, by which a rank sees whether it shares the folder.
        needs_shared: whether a rank that does not must fail.
    """

    def __init__(
        self, session: Session, config: RunConfig, started: float, probe: dict[str, str], needs_shared: bool
    ) -> None:
        self._session, self._config, self._started = session, config, started
        self._probe, self._needs_shared = probe, needs_shared
        self._result: str | None = None
        self._error: Exception | None = None
        self._failed_at: float | None = None

    @override
    def run(self, host: Host, run_dir: Path, environment: dict[str, str], watch: Callable[[], None]) -> dict[str, Any]:
        """As `Host.run`, but not under the host.

        Raises:
            KnownFailure: where an executor is gone.
        """
        store = Store("127.0.0.1", 0, serve=True)
        depot = self._depot(run_dir, environment)
        address = self._session.driver_host
        invitation = Invitation(address, depot.port, f"{address}:{store.port}", secrets.token_hex(6), depot.token)
        thread = threading.Thread(target=self._distribute, args=(run_dir, invitation), daemon=True)
        thread.start()
        try:
            while thread.is_alive() and not self._over():
                watch()
                self._check(run_dir, depot)
                if (run_dir / STOP_FILE).exists():
                    store.put(f"flag/{STOP_FILE}", 1)
                time.sleep(POLL_SECONDS)
            self._gather(depot, watch)
        finally:
            depot.close()
            if thread.is_alive():
                self._session.spark.sparkContext.cancelJobGroup(invitation.run)
                thread.join(OTHERS_END_SECONDS)
            (run_dir / self._probe["file"]).unlink(missing_ok=True)
        if self._result is not None and self._error is None and depot.delivered:
            return {"status": self._result}
        error = first_line(self._error) if self._error is not None else "nothing came back from rank 0"
        return {"status": "failed", "failures": {}, "error": f"Spark: {error}"}

    def _depot(self, run_dir: Path, environment: dict[str, str]) -> Depot:
        inputs = inputs_of(self._config)
        rendered = [path for path in run_dir.iterdir() if path.suffix in RENDERED]
        brought = {path.name: path.read_text(encoding="utf-8") for path in rendered}
        silence = self._config.cluster.node_timeout_seconds
        (run_dir / self._probe["file"]).write_text(self._probe["content"])
        header = {
            "environment": self._travelling() | environment,
            "run_dir": str(run_dir),
            "host": self._session.driver_host,
            "probe": {**self._probe, "file": str(run_dir / self._probe["file"])},
            "needs_shared": self._needs_shared,
            "elapsed": time.monotonic() - self._started,
            "silence": silence,
            "brought": list(brought),
            "sizes": {item.key: item.sizes() for item in inputs},
            "names": {item.key: list(item.names().values()) for item in inputs},
        }
        return Depot(run_dir, secrets.token_hex(16), silence, header, brought, {i.key: i.names() for i in inputs})

    def _travelling(self) -> dict[str, str]:
        """What ranks need of this environment, which executors do not have; a tracker's credentials stay here."""
        secret = credential_variables()
        own = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES) and name not in secret}
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"} if needs_no_hub(self._config) else {}
        return own | offline

    def _distribute(self, run_dir: Path, invitation: Invitation) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # torchrun inherits it: a Ctrl-C here is not for it
        try:
            self._session.spark.sparkContext.setJobGroup(invitation.run, f"finetune-runner {run_dir.name}")
            started = distributor(self._config, run_dir, self._session.is_local)
            self._result = started.run(run_rank, invitation)
        except Exception as error:  # noqa: BLE001 - told in the thread that waits
            self._error = error

    def _check(self, run_dir: Path, depot: Depot) -> None:
        """A rank's own error ends the run soon; Spark would take half a minute, and leave an agent behind."""
        if depot.lost:
            where = f"executor {depot.lost[0]} is gone: its processes or the machine have ended"
            raise KnownFailure(Failure(None, where, run_dir / rundir.LOGS))
        if self._failed_at is None and errors_of_attempt(run_dir):
            self._failed_at = time.monotonic()

    def _over(self) -> bool:
        return self._failed_at is not None and time.monotonic() - self._failed_at > OTHERS_END_SECONDS

    def _gather(self, depot: Depot, watch: Callable[[], None]) -> None:
        """Wait for what companions have not sent yet."""
        while depot.connected and not self._over():
            watch()
            time.sleep(POLL_SECONDS)
