"""The vocabulary of an estimate: items, the moments of a step at which they exist, and where they live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Home = Literal["device", "host", "disk"]
Moment = Literal["setup", "forward", "recompute", "backward", "step"]
Category = Literal[
    "parameters",
    "gathered_parameters",
    "gradients",
    "optimizer_states",
    "master_weights",
    "autocast_copies",
    "communication_buckets",
    "activations",
    "logits",
    "temporary",
    "framework",
    "margin",
]

MOMENTS: dict[Moment, str] = {
    "setup": "while the training state is being built",
    "forward": "end of the forward pass and start of the backward pass: activations are complete",
    "recompute": "first layer recomputed in the backward pass",
    "backward": "end of the backward pass: gradients are complete, activations gone",
    "step": "optimizer step",
}
CATEGORIES: dict[Category, str] = {
    "parameters": "parameters",
    "gathered_parameters": "gathered parameters",
    "gradients": "gradients",
    "optimizer_states": "optimizer states",
    "master_weights": "fp32 master copy",
    "autocast_copies": "autocast copies",
    "communication_buckets": "communication buckets",
    "activations": "activations",
    "logits": "logits",
    "temporary": "temporary peaks",
    "framework": "framework overhead",
    "margin": "margin",
}
STATIC: tuple[Moment, ...] = ("forward", "recompute", "backward", "step")
ALWAYS: tuple[Moment, ...] = ("setup", *STATIC)


@dataclass(frozen=True)
class Item:
    """Some bytes of one rank: what they are, when they exist, and why they have this size."""

    category: Category
    bytes: int
    why: str
    moments: tuple[Moment, ...] = STATIC
    place: Home = "device"
