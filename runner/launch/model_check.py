"""Asks the host whether a folder's weights and tokenizer fit the run; it has imported what that takes, the runner has
not.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from runner import paths, render
from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError
from runner.launch.host_client import Host, HostDied
from runner.preflight.assets import Asset, in_cache, needed_assets

_FITTING: set[str] = set()  # what was looked at before in this process: cells of a sweep mostly share their model


def check_model_fits(config: RunConfig, host: Host) -> None:
    """Refuse weights that lack tensors of the model's body, and a tokenizer that is another model's.

    Only for pretrained weights that lie on this machine already; others are checked by the ranks that download them.

    Raises:
        RequestError: naming the key.
    """
    weights = next((asset for asset in needed_assets(config) if asset.role == "weights"), None)
    if config.model.init != "pretrained" or weights is None or not (weights.local or in_cache(config, weights)):
        return
    fingerprint = json.dumps([config.model.model_dump(mode="json"), config.recipe.name, config.task, _times(weights)])
    if fingerprint in _FITTING:
        return
    outcome = _asked(config, host)
    if outcome.get("status") == "refused":
        why, _, fix = str(outcome["why"]).partition("; ")
        raise RequestError(Problem(weights.key, weights.name, why, fix or f"set {weights.key}=DIR"))
    _FITTING.add(fingerprint)


def _times(asset: Asset) -> list[tuple[str, int, int]]:
    if not asset.local:
        return []
    files = sorted(path for path in Path(asset.name).expanduser().iterdir() if path.is_file())
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _asked(config: RunConfig, host: Host) -> dict[str, Any]:
    """The host's answer; none where it cannot answer, the ranks then find out."""
    try:
        with tempfile.TemporaryDirectory(dir=paths.temporary_dir(config.cache_dir)) as folder:
            render.write(render.common_files(config, Path(folder)), Path(folder))
            return host.run("check_model", Path(folder), {}, lambda: None)
    except (HostDied, OSError):
        return {}
