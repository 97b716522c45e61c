"""torch's attention without a fused kernel, by name.

Private: `torch.ops.aten._scaled_dot_product_attention_math`. The public `scaled_dot_product_attention` chooses a kernel
by the device of its tensors; on the meta device, on which the estimate runs, it does not choose what a CPU would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CHECKED = {"torch": ">=2.7,<3"}


def unfused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention in single operations, each of which keeps what it needs for the backward pass."""
    import torch

    output: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return output
