"""Two of torch's optimizers that look like one to accelerate, schedules and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import override

from runner.config.optimization import OptimizerConfig
from runner.optimizers.adamw import settings
from runner.optimizers.base import ParameterGroups


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon over some parameter groups, AdamW over others.

    The groups and the states are shared objects: what a schedule or a checkpoint changes here holds in both.
    """

    def __init__(self, config: OptimizerConfig, matrices: ParameterGroups, rest: ParameterGroups) -> None:
        self._parts: list[torch.optim.Optimizer] = []
        made: list[torch.optim.Optimizer] = []
        if matrices:
            made.append(
                torch.optim.Muon(
                    matrices, lr=config.lr, momentum=config.momentum, adjust_lr_fn="match_rms_adamw", weight_decay=0.0
                )
            )
        if rest:
            made.append(torch.optim.AdamW(rest, **settings(config)))
        self._sizes = [len(part.param_groups) for part in made]
        super().__init__([group for part in made for group in part.param_groups], {"lr": config.lr})
        self._parts = made
        self._share()

    @override
    def __setstate__(self, state: dict[str, Any]) -> None:
        """After a checkpoint was taken up: torch has put new groups and states in place."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        groups = list(self.param_groups)
        for part, size in zip(self._parts, self._sizes, strict=False):
            part.param_groups, groups = groups[:size], groups[size:]
            part.state = self.state

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of both."""
        assert closure is None, "closures are not used here"
        for part in self._parts:
            part.step()
