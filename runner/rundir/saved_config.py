"""`config.yaml`: the resolved configuration that the ranks of a run read."""

from __future__ import annotations

from pathlib import Path

import yaml

from runner.config.schema import RunConfig
from runner.regular_files import read_regular
from runner.rundir.names import CONFIG_FILE
from runner.rundir.record import write_atomically


def write_config(run_dir: Path, config: RunConfig) -> None:
    """Write the resolved configuration; any YAML 1.1 reader gets numbers as numbers."""
    write_atomically(
        run_dir / CONFIG_FILE,
        yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=10_000),
    )


def read_config(run_dir: Path) -> RunConfig:
    """The resolved configuration of a run folder."""
    return RunConfig.model_validate(yaml.safe_load(read_regular(run_dir / CONFIG_FILE).decode("utf-8")))
