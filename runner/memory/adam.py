"""What AdamW keeps and needs while it steps, whichever engine calls it."""

from __future__ import annotations

from runner.memory.items import Moment
from runner.memory.workload import Workload

ADAM_BYTES = 8  # momentum and variance in fp32, a trained element
GRADIENT_MOMENTS: tuple[Moment, ...] = ("backward", "step")


def adam_temporaries(workload: Workload, tensors: list[int]) -> int:
    """Bytes torch's Adam allocates while it steps over tensors of these sizes (elements), one parameter group.

    torch/optim/adam.py: the foreach form (default on CUDA) holds a square root of every second moment of the
    group at once; the loop (default on CPU) holds two temporaries of one tensor; fused kernels hold nothing.
    """
    if workload.optimizer_kernel == "fused" or not tensors:
        return 0
    if workload.optimizer_kernel == "foreach" and workload.device == "cuda":
        return 4 * sum(tensors)
    return 2 * 4 * max(tensors)


def gradient_moments(workload: Workload, zeroed_in_place: bool = False) -> tuple[Moment, ...]:
    """Gradients outlive a forward pass when micro batches accumulate or when they are zeroed in place."""
    kept = workload.gradient_accumulation_steps > 1 or zeroed_in_place
    return ("forward", "recompute", *GRADIENT_MOMENTS) if kept else GRADIENT_MOMENTS
