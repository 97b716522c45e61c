"""The folder that NVMe offload writes to: the run's own, and removed at its end.

DeepSpeed names its swap files by rank and tensor only: two runs with one path would overwrite each other's, and
neither would remove them.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.config.schema import RunConfig
from runner.engines.deepspeed.config import offload_section


def swap_folder(nvme_path: str, run_dir: Path) -> Path:
    """The run's own folder under `offload.nvme_path`."""
    where = hashlib.sha256(str(run_dir.absolute()).encode()).hexdigest()[:8]
    path, own = Path(nvme_path).expanduser().absolute(), f"{run_dir.name}-{where}"
    return path if path.name == own else path / own


def into_own_folder(content: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    """A DeepSpeed JSON whose NVMe offload goes to the run's own folder."""
    zero = dict(content.get("zero_optimization", {}))
    for name in ("offload_optimizer", "offload_param"):
        block = zero.get(name)
        if isinstance(block, dict) and block.get("device") == "nvme" and block.get("nvme_path"):
            zero[name] = {**block, "nvme_path": str(swap_folder(block["nvme_path"], run_dir))}
    return {**content, "zero_optimization": zero} if "zero_optimization" in content else content


@contextlib.contextmanager
def swap_files(config: RunConfig, run_dir: Path) -> Iterator[None]:
    """Make the run's swap folder, and remove it with everything in it, however the run ends."""
    path = offload_section(config).nvme_path
    if path is None:
        yield
        return
    folder = swap_folder(path, run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
