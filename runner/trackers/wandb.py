"""Weights & Biases. WANDB_API_KEY or `wandb login` for the network; WANDB_MODE=offline writes into the run folder."""

from __future__ import annotations

import netrc
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from runner.errors import Problem
from runner.trackers.tracker import Ending, Line, TrackedRun, Tracker, from_environment

STEP = "step"  # every number is drawn over optimizer steps, whatever wandb counts itself


class WandB(Tracker):
    """One wandb run; the cells of a sweep share a group. Neither code nor output is uploaded."""

    module = "wandb"
    extra = "wandb"
    credentials = ("WANDB_API_KEY",)

    def problems(self) -> list[Problem]:
        """Without a key wandb would ask for one, in a process that nobody can answer."""
        found = super().problems()
        if found or from_environment("WANDB_MODE") in ("offline", "disabled", "dryrun") or _has_key():
            return found
        why = "there is no API key: WANDB_API_KEY is not set and nobody has logged in"
        fix = "set WANDB_API_KEY, run `wandb login`, or set WANDB_MODE=offline and `wandb sync` later"
        return [Problem("tracker", "wandb", why, fix)]

    def start(self, run: TrackedRun, known_id: str | None) -> str:
        import wandb

        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, save_code=False, init_timeout=30,
            disable_job_creation=True, x_disable_meta=True, x_disable_stats=True, x_save_requirements=False,
        )  # fmt: skip
        folder = Path(from_environment("WANDB_DIR") or run.folder)
        self._run: Any = wandb.init(
            project=from_environment("WANDB_PROJECT") or run.project,
            id=known_id or secrets.token_hex(4),
            resume="allow",
            name=run.name,
            group=run.sweep,
            job_type="cell" if run.sweep else None,
            notes=run.tags.get("note"),
            tags=[f"{name}:{value}"[:64] for name, value in run.tags.items() if name in ("method", "recipe", "model")],
            config={**run.parameters, "tags": run.tags},
            dir=str(folder),
            settings=settings,
        )
        self._run.define_metric("*", step_metric=STEP)
        return str(self._run.id)

    def log(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._run.log({**line.values, STEP: line.step, "_timestamp": line.time})

    def finish(self, ending: Ending) -> None:
        self._run.summary.update({**ending.summary, "status": ending.status, "reason": ending.reason})
        self._run.finish(exit_code=0 if ending.status == "completed" else 1)


def _has_key() -> bool:
    if from_environment("WANDB_API_KEY"):
        return True
    host = urlparse(from_environment("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    path = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        return netrc.netrc(str(path)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
