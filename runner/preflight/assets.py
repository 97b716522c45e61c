"""Where model, tokenizer and data will come from: a folder, the cache, the network, or nowhere."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from runner import paths
from runner.config.catalogue import BUNDLED, BUNDLED_TOKENIZER
from runner.config.schema import RunConfig
from runner.data.source import named_files, split_paths
from runner.errors import Problem
from runner.preflight.hub_access import Kind, Wanted, check_access, endpoint
from runner.preflight.model_folder import check_tokenizer, check_weights, no_model_folder


@dataclass(frozen=True)
class Asset:
    """Something the run needs from outside the configuration."""

    role: str  # weights, tokenizer, data set
    kind: Kind
    key: str  # configuration key that names it
    name: str
    local: bool


def needed_assets(config: RunConfig) -> list[Asset]:
    """Everything the run has to read from a folder or the hub."""
    model, dataset = config.model, config.dataset
    assets = []
    if model.init == "pretrained" or model.path or not model.config:
        assets.append(
            Asset(
                "weights",
                "model",
                "model.path" if model.path else "model.hub_id",
                model.path or model.hub_id or "",
                bool(model.path),
            )
        )
    tokenizer = model.tokenizer or model.path or model.hub_id or ""
    if not tokenizer.startswith(BUNDLED_TOKENIZER):
        local = tokenizer == model.path or Path(tokenizer).expanduser().is_dir()
        assets.append(
            Asset("tokenizer", "model", "model.tokenizer" if model.tokenizer else "model.hub_id", tokenizer, local)
        )
    if dataset.source == "hub":
        assets.append(Asset("data set", "dataset", "dataset.hub_id", dataset.hub_id or "", False))
    return assets


def check_assets(config: RunConfig) -> list[Problem]:
    """Missing folders, and hub names that are neither cached nor reachable; at most one attempt to connect."""
    problems, missing = [], []
    for asset in needed_assets(config):
        if not asset.name:
            problems.append(
                Problem(
                    asset.key,
                    None,
                    f"nothing says where the {asset.role} come from",
                    "set model.path=DIR or model.hub_id=NAME",
                )
            )
        elif asset.local:
            problems += _folder_problems(config, asset)
        else:
            problems += _shadows(asset)
            if not in_cache(config, asset):
                missing.append(asset)
    if missing and not hub_reachable():
        return problems + [_not_to_be_had(config, asset) for asset in missing]
    without = _without_token(config, missing)
    return problems + (without or check_access(_wanted(config, missing)))


def _wanted(config: RunConfig, missing: list[Asset]) -> list[Wanted]:
    """What is to be asked of the hub, each repository once."""
    wanted: dict[tuple[Kind, str], Wanted] = {}
    for asset in missing:
        revision = config.dataset.revision if asset.kind == "dataset" else None
        if asset.kind == "model" and asset.name == config.model.hub_id:
            revision = config.model.revision
        wanted.setdefault((asset.kind, asset.name), Wanted(asset.key, asset.kind, asset.name, revision))
    return list(wanted.values())


def _without_token(config: RunConfig, missing: list[Asset]) -> list[Problem]:
    """A gated model is handed out to known users only; the hub would say so after the ranks have started."""
    if (
        not config.model.gated
        or has_token()
        or not any(asset.kind == "model" and asset.name == config.model.hub_id for asset in missing)
    ):
        return []
    return [
        Problem(
            "model.hub_id",
            config.model.hub_id,
            "this model is gated and there is no token of yours on this machine",
            f"accept its licence on {endpoint()}/{config.model.hub_id}, then `hf auth login` (or export HF_TOKEN)",
        )
    ]


def has_token() -> bool:
    """Whether a token for the hub is available; nothing is asked of the hub."""
    named = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    return bool(named) or paths.hf_token_path().is_file()


def _folder_problems(config: RunConfig, asset: Asset) -> list[Problem]:
    folder = Path(asset.name).expanduser()
    try:
        return _tokenizer_folder(config, asset) if asset.role == "tokenizer" else _weights_folder(config, asset, folder)
    except OSError as error:
        why = f"it cannot be read ({error.strerror}: {error.filename})"
        return [Problem(asset.key, asset.name, why, f"set {asset.key}=DIR")]


def _tokenizer_folder(config: RunConfig, asset: Asset) -> list[Problem]:
    if not Path(asset.name).expanduser().is_dir():
        return [Problem(asset.key, asset.name, "there is no such folder", f"set {asset.key}=DIR")]
    if asset.name == config.model.path and no_model_folder(asset.name):
        return []  # said of the weights
    return check_tokenizer(asset.name, "model.path" if asset.name == config.model.path else asset.key)


def _weights_folder(config: RunConfig, asset: Asset, folder: Path) -> list[Problem]:
    problems = no_model_folder(asset.name, asset.key)
    if problems:
        return problems
    if config.model.init == "pretrained" and not list(folder.glob("*.safetensors")):
        if list(folder.glob("*.bin")):
            if config.model.allow_pickle:
                return []
            return [
                Problem(
                    asset.key,
                    asset.name,
                    "its weights are pickles (.bin), which can execute code",
                    "convert them to safetensors, or trust them with model.allow_pickle=true",
                )
            ]
        return [
            Problem(
                asset.key,
                asset.name,
                "this folder has no weights (*.safetensors)",
                "give a folder with weights, or set model.init=random",
            )
        ]
    return check_weights(asset.name, asset.key) if config.model.init == "pretrained" else []


def _shadows(asset: Asset) -> list[Problem]:
    """A folder named like a hub id: the libraries would read the folder; the run must not depend on
    where it is typed.
    """
    short = asset.name.rpartition("/")[2]
    for name in {asset.name, short}:
        if Path(name).is_dir():
            exact = name == asset.name
            why = f"the folder ./{name} has the same name; " + (
                "it would be read instead of the hub" if exact else "it is not used: the name means the hub's"
            )
            fix = (
                "rename the folder, or set "
                f"{'model.path' if asset.kind == 'model' else 'dataset=files dataset.train'}=./{name} if you mean it"
                if exact
                else ""
            )
            return [Problem(asset.key, asset.name, why, fix, "error" if exact else "notice")]
    return []


def hub_cache(config: RunConfig) -> Path:
    """The hub's cache folder, by the variables huggingface_hub reads."""
    if config.cache_dir:
        return paths.cache_dir(config.cache_dir) / "huggingface" / "hub"
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.environ["HF_HUB_CACHE"])
    return paths.hf_home() / "hub"


def in_cache(config: RunConfig, asset: Asset) -> bool:
    """Whether a snapshot with files of the right kind lies in the hub's cache."""
    folder = hub_cache(config) / f"{asset.kind}s--{asset.name.replace('/', '--')}" / "snapshots"
    wanted = {
        "weights": ("*.safetensors",),
        "tokenizer": ("tokenizer*", "spm.model", "vocab*"),
        "data set": ("**/*.parquet", "**/*.json*", "**/*.csv", "**/*.arrow"),
    }
    return any(next(folder.glob(f"*/{pattern}"), None) is not None for pattern in wanted[asset.role])


def resolved_assets(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Where model, tokenizer and data come from, for the record: an absolute folder, a commit of the hub, or a bundled
    name.
    """
    found: dict[str, dict[str, Any]] = {}
    for asset in needed_assets(config):
        role = asset.role.replace(" ", "_")
        if asset.local:
            found[role] = {"source": "folder", "path": str(Path(asset.name).expanduser().absolute())}
        else:
            found[role] = {"source": "hub", "name": asset.name, "revision": _commit(config, asset)}
    if "weights" not in found:
        found["weights"] = {"source": "model.config", "name": config.model.name}
    if "tokenizer" not in found and config.model.tokenizer:
        found["tokenizer"] = {"source": "bundled", "name": config.model.tokenizer.removeprefix(BUNDLED_TOKENIZER)}
    if config.dataset.source != "hub":
        splits = {
            split: [str(path) for path in split_paths(config.dataset, split)]
            for split in ("train", "validation", "test")
            if named_files(config.dataset, split)
        }
        found["data_set"] = {"source": config.dataset.source, "name": config.dataset.name, "files": splits}
    return found


def _commit(config: RunConfig, asset: Asset) -> str | None:
    """Commit of the cached snapshot that a name and revision stand for; None before it is downloaded."""
    folder = hub_cache(config) / f"{asset.kind}s--{asset.name.replace('/', '--')}"
    wanted = (
        config.dataset.revision
        if asset.kind == "dataset"
        else config.model.revision
        if asset.name == config.model.hub_id
        else None
    )
    with contextlib.suppress(OSError):
        return (folder / "refs" / (wanted or "main")).read_text().strip()
    return wanted if wanted and (folder / "snapshots" / wanted).is_dir() else None


def offline_asked_for() -> bool:
    """Whether the environment forbids connections."""
    return any(
        os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    )


@lru_cache(maxsize=1)
def hub_reachable(timeout_seconds: float = 3.0) -> bool:
    """Whether the hub (or its mirror in HF_ENDPOINT) accepts a connection; no attempt where offline is asked for."""
    if offline_asked_for():
        return False
    answered: list[bool] = []
    # A thread, because a name look-up without a network obeys no time limit.
    probe = threading.Thread(target=lambda: answered.append(_connects(timeout_seconds)), daemon=True)
    probe.start()
    probe.join(timeout_seconds)
    return bool(answered and answered[0])


def _connects(timeout_seconds: float) -> bool:
    address = urlparse(endpoint())
    proxy = urlparse(os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or "")
    host, port = (
        (proxy.hostname, proxy.port or 3128)
        if proxy.hostname
        else (address.hostname, address.port or (80 if address.scheme == "http" else 443))
    )
    with contextlib.suppress(OSError, ValueError), socket.create_connection((host, port), timeout=timeout_seconds):
        return True
    return False


def _not_to_be_had(config: RunConfig, asset: Asset) -> Problem:
    state = "offline mode is on" if offline_asked_for() else f"the hub cannot be reached ({endpoint()})"
    where = f"{asset.role} {asset.name}: not in {hub_cache(config)}, and {state}"
    model, sample = BUNDLED.get(config.model.family, BUNDLED["encoder"])
    download = f"hf download {asset.name}" + (" --repo-type dataset" if asset.kind == "dataset" else "")
    if asset.role == "weights":
        fix = f"set model.path=DIR, or run `{download}` where there is a network, or set model.init=random"
    elif asset.role == "tokenizer":
        fix = (
            f"set model.tokenizer=DIR (bundled:{model} is available), or run `{download}` where there is a network, "
            f"or use model={model}"
        )
    else:
        fix = (
            f"use dataset=files dataset.train=FILE dataset.validation=FILE, or run `{download}` where there is a "
            f"network, or use dataset={sample} (generated rows)"
        )
    return Problem(asset.key, asset.name, where, fix)
