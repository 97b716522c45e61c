"""Losses in a row that are not finite, counted on the device; nothing waits for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class BadLosses:
    """What the counter said when it was read.

    Attributes:
        in_a_row: losses up to now that were not finite, without a finite one between.
        longest: the longest such row since the counter was read before.
        first_step: optimizer step at which the last such row began; 0 if there was none.
    """

    in_a_row: int
    longest: int
    first_step: int


class LossWatch:
    """The counter: three numbers, in float64."""

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(3, dtype=torch.float64, device=device)

    def see(self, loss: torch.Tensor, step: int) -> None:
        """Count the loss (no dimension) of an optimizer step, numbered from 1."""
        in_a_row, longest, first = self.values
        bad = (~torch.isfinite(loss)).double()
        in_a_row.add_(1).mul_(bad)
        first.copy_(torch.where(in_a_row == 1, float(step), first))
        longest.copy_(torch.maximum(longest, in_a_row))

    def taken(self, values: list[float]) -> BadLosses:
        """What `values` said, once read from the device; the longest row starts anew with the present one."""
        self.values[1].copy_(self.values[0])
        return BadLosses(int(values[0]), int(values[1]), int(values[2]))
