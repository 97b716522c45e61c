"""The sections of the configuration that adapters read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from runner.config.fields import Float, Int, Section, Text

if TYPE_CHECKING:
    from runner.config.schema import RunConfig


class AdapterConfig(Section):
    """Which part of the model is trained: all of it, or a low-rank adapter beside frozen weights (docs/lora.md)."""

    name: Literal["none", "lora", "qlora", "dora"] = Field(
        "none", description="Name of the adapter, as chosen by `adapter=`."
    )
    r: Int = Field(16, ge=1, le=4096, description="Rank of the two matrices that are trained beside each target layer.")
    alpha: Float = Field(32.0, gt=0.0, description="Scale: an adapter's output counts alpha ÷ r times.")
    rslora: bool = Field(False, description="Count it alpha ÷ √r times instead, for high ranks (arXiv:2312.03732).")
    dropout: Float = Field(0.0, ge=0.0, lt=1.0, description="Dropout on the input of the adapter.")
    target_modules: list[Text] | Literal["auto"] = Field(
        "auto",
        description="Layers that get an adapter, by the last part of their names in the model ([q_proj,v_proj]); auto: "
        "every linear layer but the output head.",
    )
    modules_to_save: list[Text] = Field(
        [],
        description="Further modules that are trained whole and saved with the adapter; a new head of the task always "
        "is.",
    )
    bias: Literal["none", "all", "lora_only"] = Field(
        "none", description="Biases that are trained: none, all, or those of the target layers."
    )
    init: Literal["default", "gaussian", "orthogonal"] = Field(
        "default",
        description="First values of the matrices: peft's default and gaussian leave the model's output as "
        "it is at the start; orthogonal needs an even rank.",
    )


class QuantizationConfig(Section):
    """How QLoRA holds the frozen weights (bitsandbytes, 4 bits a weight)."""

    type: Literal["nf4", "fp4"] = Field("nf4", description="The sixteen values: quantiles of a normal, or floats.")
    double: bool = Field(True, description="Quantise the scales of the blocks as well: 0.37 bits a weight less.")
    storage: Literal["auto", "uint8", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="Type in which the packed bytes are stored; auto: uint8, and under launcher=fsdp the run's "
        "precision, without which they could not be sharded.",
    )


SECTIONS: dict[str, type[Section]] = {"adapter": AdapterConfig, "quantization": QuantizationConfig}


def adapter_section(config: RunConfig) -> AdapterConfig:
    """The run's `adapter` section."""
    return config.section("adapter", AdapterConfig)


def quantization_section(config: RunConfig) -> QuantizationConfig:
    """The run's `quantization` section."""
    return config.section("quantization", QuantizationConfig)
