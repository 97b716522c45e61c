"""FSDP's own section of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from runner.config.fields import Section, Text

if TYPE_CHECKING:
    from runner.config.schema import RunConfig


class FsdpConfig(Section):
    """torch's FSDP2: parameters, gradients and optimizer states sharded over ranks."""

    reshard_after_forward: bool = Field(
        True,
        description="true: a layer's parameters are gathered for its forward and its backward pass (as ZeRO-3); false: "
        "they stay whole from the forward to the backward pass (as ZeRO-2): more memory, less communication.",
    )
    wrap: list[Text] | None = Field(
        None,
        min_length=1,
        description="Classes of the layers that are sharded and gathered one by one, as the model's code names them; "
        "null: the layers that gradient checkpointing recomputes.",
    )
    checkpoint: Literal["sharded", "full"] = Field(
        "sharded",
        description="sharded: every rank writes its part; full: rank 0 gathers and writes all. A run on another number "
        "of ranks can resume from either.",
    )


SECTIONS: dict[str, type[Section]] = {"fsdp": FsdpConfig}


def fsdp_section(config: RunConfig) -> FsdpConfig:
    """The run's `fsdp` section."""
    return config.section("fsdp", FsdpConfig)
