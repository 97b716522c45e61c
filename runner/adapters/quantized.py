"""Frozen weights of 4 bits: how they are loaded, and how many bytes they take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from runner.adapters.config import QuantizationConfig

if TYPE_CHECKING:
    import torch

BLOCK = 64  # weights that share a scale (bitsandbytes' default for 4 bits)
SCALES = 256  # scales that share a scale of their own, where they are quantised as well
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "uint8": "uint8"}


def loading(section: QuantizationConfig, storage: str, precision: str, device: str) -> dict[str, Any]:
    """Arguments of `from_pretrained`; on a GPU each rank quantises on its own."""
    import torch
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type=section.type,
        bnb_4bit_use_double_quant=section.double,
        bnb_4bit_compute_dtype=getattr(torch, _DTYPES[precision]),
        bnb_4bit_quant_storage=getattr(torch, _DTYPES[storage]),
    )
    place = {"device_map": {"": torch.cuda.current_device()}} if device == "cuda" else {}
    return {"quantization_config": settings, **place}


def keep_trainable(model: torch.nn.Module) -> None:
    """Keep bitsandbytes from packing weights anew for inference on processors with AVX512-BF16: it does so in the
    first evaluation, for good, and in that format gradients no longer flow back through the layer.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def quantized_bytes(numel: int, double: bool) -> int:
    """Bytes of a weight with so many elements in 4 bits, its scales and tables included.

    Source: bitsandbytes/functional.py, quantize_4bit: two weights a byte; a scale in fp32 for every block of 64, or
    in 8 bits with a scale in fp32 for every 256 of them, their table of 256 floats and an offset; a table of 16 floats.
    """
    blocks = math.ceil(numel / BLOCK)
    scales = blocks + 4 * math.ceil(blocks / SCALES) + 4 * 256 + 4 if double else 4 * blocks
    return math.ceil(numel / 2) + scales + 4 * 16
