"""The `parallel` section of the configuration."""

from __future__ import annotations

from pydantic import Field

from runner.config.fields import Int, Section


class ParallelConfig(Section):
    """Degrees by which a model is split over ranks, beside what the launcher shards (docs/parallel.md)."""

    hybrid_shard: Int | None = Field(
        None,
        ge=2,
        description="FSDP: training state is sharded within groups of so many neighbouring ranks and replicated across "
        "groups. ZeRO-3: each group keeps a second copy of the weights for the backward pass (hpZ). null: neither.",
    )
    tensor: Int = Field(
        1,
        ge=1,
        description="Ranks that share every attention layer and MLP (DeepSpeed's AutoTP): they work on the same rows, "
        "so that batches, throughput and evaluation count groups of so many ranks. Llama-like models only.",
    )
