"""Few hosts for many jobs: a host is started only where no living one fits the job."""

from __future__ import annotations

from typing import Any

from runner.config.schema import RunConfig
from runner.launch.host_client import Host, host_key
from runner.preflight.assets import hub_reachable, in_cache, needed_assets

MOST_HOSTS = 2  # a comparison goes to and fro between DDP and DeepSpeed; an idle host takes memory only


class SharedHosts:
    """Keeps hosts between jobs; libraries are imported once for all jobs with the same device, launcher and threads."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[Any, ...], Host] = {}

    def of(self, config: RunConfig) -> Host:
        """A host for a resolved configuration; the one that was not used for longest is closed for it."""
        offline = needs_no_hub(config)
        key = host_key(config, offline)
        host = self._hosts.pop(key, None)
        if host is not None and not host.alive:
            host.close()
            host = None
        while host is None and len(self._hosts) >= MOST_HOSTS:
            self._hosts.pop(next(iter(self._hosts))).close()
        self._hosts[key] = host or Host(config, offline)
        return self._hosts[key]

    def close(self) -> None:
        """End all hosts and everything under them."""
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()


def needs_no_hub(config: RunConfig) -> bool:
    """Whether everything is available, so that no look-up on the hub is needed."""
    remote = [asset for asset in needed_assets(config) if not asset.local]
    return not remote or (all(in_cache(config, asset) for asset in remote) and not hub_reachable())
