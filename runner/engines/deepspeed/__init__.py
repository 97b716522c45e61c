"""DeepSpeed ZeRO under accelerate."""
