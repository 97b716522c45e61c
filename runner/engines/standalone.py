"""What an engine contributes to a training script that runs without the runner (`python -m runner eject`)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Standalone:
    """Lines of the script, without indentation.

    Attributes:
        imports: `from … import …` lines, further names of accelerate.utils left out.
        accelerate_utils: names imported from accelerate.utils.
        environment: variables that must be set before the libraries are imported.
        before_start: statements after the imports, before any process group exists.
        accelerator: arguments of `Accelerator(…)`.
        prepare: statements that make `model`, `optimizer` and `scheduler` of `model`, `groups` and `lr_factor`.
        after_backward: statements at the end of an optimizer step's last micro batch.
        collective_forward: whether every rank must run the same number of forward passes.
    """

    prepare: list[str]
    after_backward: list[str]
    imports: list[str] = field(default_factory=list)
    accelerate_utils: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    before_start: list[str] = field(default_factory=list)
    accelerator: list[str] = field(default_factory=list)
    collective_forward: bool = False
