"""DeepSpeed's own sections of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from runner.config.fields import Int, Section, Text

if TYPE_CHECKING:
    from runner.config.schema import RunConfig

OffloadTarget = Literal["none", "cpu", "nvme"]


class ZeroConfig(Section):
    """DeepSpeed ZeRO: which training state is partitioned over ranks."""

    stage: Int = Field(2, ge=0, le=3, description="0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters.")
    reduce_bucket_size: Int = Field(200_000_000, ge=1, description="Elements reduced at a time.")
    allgather_bucket_size: Int = Field(200_000_000, ge=0, description="Elements gathered at a time (stages 1 and 2).")
    overlap_comm: bool = Field(True, description="Reduce gradients while the backward pass runs.")
    contiguous_gradients: bool = Field(True, description="Copy gradients into one buffer as they appear.")
    sub_group_size: Int = Field(1_000_000_000, ge=0, description="Stage 3: parameters updated at a time.")
    stage3_prefetch_bucket_size: Int = Field(50_000_000, ge=0, description="Stage 3: elements fetched ahead.")
    stage3_param_persistence_threshold: Int = Field(
        100_000, ge=0, description="Stage 3: tensors with fewer elements stay whole on every rank."
    )
    stage3_max_live_parameters: Int = Field(
        1_000_000_000, ge=0, description="Stage 3: whole parameters held at a time."
    )
    partition_at_load: bool = Field(
        False,
        description="Stage 3: partition parameters while the model is built, for models too large for one host per "
        "rank; new weights (a task head) then differ from other launchers'.",
    )
    stage3_max_reuse_distance: Int = Field(
        1_000_000_000, ge=0, description="Stage 3: a parameter used again within this many elements is kept."
    )


class OffloadConfig(Section):
    """Where training state lives when it is not on the device."""

    name: Text = Field("none", description="Name of the choice, as chosen by `offload=`.")
    optimizer: OffloadTarget = Field("none", description="Place of optimizer states; cpu and nvme need ZeRO 1, 2 or 3.")
    params: OffloadTarget = Field("none", description="Place of parameters; cpu and nvme need ZeRO 3.")
    nvme_path: Text | None = Field(None, description="Folder on a fast local disk for `nvme`.")
    pin_memory: bool = Field(True, description="Use page-locked host memory (GPU only).")
    buffer_count: Int = Field(5, ge=1, description="nvme only: buffers in the pool.")
    force_cpu_adam: bool = Field(
        True,
        description="Use DeepSpeed's compiled CPU Adam with an offloaded optimizer; false keeps torch's (slower, "
        "nothing to compile).",
    )


SECTIONS: dict[str, type[Section]] = {"zero": ZeroConfig, "offload": OffloadConfig}


def zero_section(config: RunConfig) -> ZeroConfig:
    """The run's `zero` section."""
    return config.section("zero", ZeroConfig)


def offload_section(config: RunConfig) -> OffloadConfig:
    """The run's `offload` section."""
    return config.section("offload", OffloadConfig)


def on_cpu_adam(config: RunConfig) -> bool:
    """Whether DeepSpeed's compiled CPU Adam takes the place of torch's optimizer."""
    offload = offload_section(config)
    return offload.optimizer != "none" and offload.force_cpu_adam


def on_nvme(config: RunConfig) -> bool:
    """Whether anything is offloaded to a disk."""
    offload = offload_section(config)
    return "nvme" in (offload.optimizer, offload.params)
