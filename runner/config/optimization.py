"""The sections `optimizer` and `scheduler`; what each does: runner/optimizers, runner/schedules."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from runner.config.fields import DecayRate, Float, Int, Section

Owner = Literal["auto", "deepspeed", "client"]


class OptimizerConfig(Section):
    """The optimizer and who builds it."""

    name: Literal["adamw", "sgd", "adafactor", "lion", "adamw_8bit", "muon"] = Field(
        "adamw",
        description="Name of the optimizer, as chosen by `optimizer=`; docs/optimizers.md says what each needs.",
    )
    owner: Owner = Field(
        "auto",
        description="deepspeed: the block stands in the DeepSpeed JSON and ranks build DummyOptim; client: an object "
        "built in the rank; auto: deepspeed for adamw under DeepSpeed.",
    )
    lr: Float = Field(2.0e-5, gt=0.0, description="Peak learning rate.")
    betas: tuple[DecayRate, DecayRate] = Field(
        (0.9, 0.999),
        description="adamw, adamw_8bit, lion, muon (for what AdamW updates): decay rates of the first and second "
        "moment, each at least 0 and below 1.",
    )
    eps: Float = Field(
        1.0e-8, gt=0.0, description="adamw, adamw_8bit, muon (for what AdamW updates): term added to the denominator."
    )
    weight_decay: Float = Field(
        0.0, ge=0.0, description="Decoupled weight decay (sgd: L2); never on biases and normalisation weights."
    )
    momentum: Float = Field(
        0.9, ge=0.0, lt=1.0, description="sgd, muon: decay rate of the momentum; 0 turns that of sgd off."
    )
    fused: bool | Literal["auto"] = Field(
        "auto",
        description="adamw, sgd: torch's fused kernel: one pass over the optimizer states instead of about ten, no "
        "temporary copies; auto: wherever it can be used (docs/optimizers.md).",
    )


class SchedulerConfig(Section):
    """The learning rate over optimizer steps and who computes it."""

    name: Literal["linear", "constant", "cosine", "cosine_with_min_lr", "polynomial", "inverse_sqrt", "wsd"] = Field(
        "linear",
        description="Shape after warm-up: linear or half a cosine to 0, constant, half a cosine or a power to a floor, "
        "inverse square root, or stable and then a decay.",
    )
    owner: Owner = Field(
        "auto",
        description="deepspeed: a scheduler block in the JSON and DummyScheduler; client: a torch LambdaLR; auto: "
        "deepspeed where its formula is the same.",
    )
    warmup_steps: Int = Field(0, ge=0, description="Optimizer steps of linear warm-up from 0.")
    warmup_ratio: Float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="Warm-up as a share of the run's optimizer steps, rounded up; takes the place of warmup_steps.",
    )
    min_lr_ratio: Float = Field(
        0.0, ge=0.0, lt=1.0, description="cosine_with_min_lr, polynomial, wsd: the last learning rate ÷ the peak."
    )
    power: Float = Field(1.0, gt=0.0, description="polynomial: power of what is left of the run; 1 is linear.")
    decay_ratio: Float = Field(
        0.1, gt=0.0, le=1.0, description="wsd: share of the run's optimizer steps in which the learning rate falls."
    )
    decay_shape: Literal["linear", "cosine", "1-sqrt"] = Field("linear", description="wsd: how it falls.")
