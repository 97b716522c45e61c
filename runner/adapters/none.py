"""No adapter: the whole model is trained."""

from __future__ import annotations

from runner.adapters import base


class Adapter(base.Adapter):
    """Full fine-tuning."""

    name = "none"
