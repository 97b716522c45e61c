"""DoRA: LoRA for a weight's direction, and its magnitude trained by itself.

Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation", arXiv:2402.09353.
"""

from __future__ import annotations

from runner.adapters import lora
from runner.engines.base import Rule


class Adapter(lora.Adapter):
    """DoRA by peft."""

    name = "dora"
    label = "DoRA"
    dora = True

    def rules(self) -> tuple[Rule, ...]:
        """LoRA says them."""
        return ()
