"""What one forward pass keeps for the backward pass, counted on the real model class without data.

The forward pass runs on the meta device under `torch.autograd.graph.saved_tensors_hooks`
(docs.pytorch.org, "Hooks for autograd saved tensors"): every tensor autograd keeps is seen once, its
storage counted once, parameters and buffers left out. Every kept storage grows linearly with the rows
of the batch at fixed lengths, so two probes give every batch size.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from runner.compat.torch_storage import storage_identity
from runner.memory.architecture import meta_model, quiet_transformers
from runner.memory.facts import Architecture, ModelFacts
from runner.memory.items import Item
from runner.memory.workload import Precision, StateLayout, Workload

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

PROBE_ROWS = (2, 3)


@dataclass(frozen=True)
class Activations:
    """Bytes of one micro batch on one rank.

    `kept` is what autograd keeps, without `logits` (everything with the vocabulary as last dimension) and
    without `autocast_copies` of weights; `autocast_cache` is all such copies, which live until the forward pass
    ends. `layer` is what the largest layer keeps when it is recomputed, `widest` the largest kept tensor and
    `widest_recomputed` the same without checkpointing. `logits_gradient` exists while `kept` is at its largest.
    """

    kept: int
    logits: int
    logits_gradient: int
    autocast_copies: int
    autocast_cache: int
    layer: int
    widest: int
    widest_recomputed: int

    @property
    def total(self) -> int:
        """Everything saved-tensor hooks count, and the logits."""
        return self.kept + self.logits + self.autocast_copies


@dataclass
class SavedTensors:
    """Storages kept by autograd, each once."""

    ignored: set[int]
    vocab_size: int = 0
    bytes_kept: int = 0
    bytes_logits: int = 0
    bytes_copies: int = 0
    widest: int = 0

    def __post_init__(self) -> None:
        self._alive: dict[int, torch.UntypedStorage] = {}
        self._copies: set[int] = set()

    @property
    def bytes_total(self) -> int:
        """All that is kept."""
        return self.bytes_kept + self.bytes_logits + self.bytes_copies

    def note_copy(self, tensor: torch.Tensor) -> None:
        """Remember a half-precision copy of a weight, to be counted apart if autograd keeps it."""
        self._copies.add(storage_identity(tensor))

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Hook for saved_tensors_hooks: counts the tensor's storage unless it is known or ignored."""
        self.count(tensor)
        return tensor

    def count(self, tensor: torch.Tensor) -> None:
        """Count a tensor that stays alive during the backward pass."""
        storage = tensor.untyped_storage()
        key = storage_identity(tensor)
        if key in self.ignored or key in self._alive:
            return
        # The storage is held here: a freed one could give its identity to another.
        self._alive[key] = storage
        if key in self._copies:
            self.bytes_copies += storage.nbytes()
        elif self.vocab_size > 1 and tensor.dim() > 1 and tensor.shape[-1] == self.vocab_size:
            self.bytes_logits += storage.nbytes()
        else:
            self.bytes_kept += storage.nbytes()
            self.widest = max(self.widest, storage.nbytes())


@dataclass(frozen=True)
class _ForwardFormat(StateLayout):
    """As much of a layout as a forward pass knows."""

    autocasts: bool
    bytes_per_weight: int

    @property
    def label(self) -> str:
        return "forward pass"

    @override
    def items(self, workload: Workload, facts: ModelFacts, rank: int | None) -> list[Item]:
        return []

    @override
    def weight_bytes(self, precision: Precision) -> int:
        return self.bytes_per_weight

    @override
    def autocast(self, precision: Precision) -> bool:
        return self.autocasts

    def described(self) -> dict[str, Any]:
        return {}


def activations(workload: Workload) -> Activations:
    """Bytes kept by one micro batch of `workload` (exact at any batch size for models whose layers
    treat rows alike).
    """
    rows, key = workload.micro_batch_size, _probe_key(workload)
    low, high = (_probe(key, count) for count in PROBE_ROWS)
    return Activations(
        *(_line(getattr(low, name), getattr(high, name), rows) for name in Activations.__dataclass_fields__)
    )


def _line(low: int, high: int, rows: int) -> int:
    """The value at `rows` on the line through the two probes."""
    return low + (high - low) * (rows - PROBE_ROWS[0]) // (PROBE_ROWS[1] - PROBE_ROWS[0])


def _probe_key(workload: Workload) -> Workload:
    """The workload with everything that does not touch activations set to one value, so that probes are shared."""
    return Workload(
        architecture=workload.architecture,
        layout=_ForwardFormat(workload.autocast, workload.layout.weight_bytes(workload.compute_precision)),
        micro_batch_size=0,
        source_length=workload.source_length,
        target_length=workload.target_length,
        precision=workload.compute_precision,
        device=workload.device,
        gradient_checkpointing=workload.gradient_checkpointing,
    )


@functools.lru_cache(maxsize=64)
def _probe(key: Workload, rows: int) -> Activations:
    """One forward pass of `rows` rows; with gradient checkpointing the pass without it tells what a layer's
    recomputation keeps.
    """
    model = meta_model(key.architecture, _weight_dtype(key))
    if not key.gradient_checkpointing:
        return _count(model, key, rows)
    plain = _probe(replace(key, gradient_checkpointing=False), rows)
    if not model.supports_gradient_checkpointing:
        return plain
    with checkpointing(model):
        stored = _count(model, key, rows)
    return replace(stored, layer=plain.layer, autocast_cache=plain.autocast_copies, widest_recomputed=plain.widest)


@contextmanager
def checkpointing(model: PreTrainedModel) -> Iterator[None]:
    """Per-layer gradient checkpointing, non-reentrant as in a run, while the block lasts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            model.gradient_checkpointing_disable()  # type: ignore[no-untyped-call]


def _weight_dtype(key: Workload) -> str:
    return "float32" if key.weight_bytes == 4 else {"bf16": "bfloat16", "fp16": "float16"}[key.precision]


def _count(model: PreTrainedModel, key: Workload, rows: int) -> Activations:
    """Run one meta forward pass and add up what is kept."""
    from runner.memory.emulation import device_emulation

    vocab = int(getattr(model.config.get_text_config(), "vocab_size", 0) or 0)
    saved = SavedTensors(_resident(model), vocab if key.architecture.family != "encoder" else 0)
    batch = batch_tensors(key.architecture, rows, key.source_length, key.target_length, device="meta")
    emulation = device_emulation(key, key.architecture.family != "causal_lm", saved.note_copy)
    with quiet_transformers(), _layer_deltas(model, saved) as deltas:
        logits = saved_in_forward(model, batch, saved, emulation, key.autocast)
    gradient = logits.numel() * 4 if key.architecture.family != "encoder" else 0
    return Activations(
        saved.bytes_kept,
        saved.bytes_logits,
        gradient,
        saved.bytes_copies,
        saved.bytes_copies,
        max(deltas, default=0),
        saved.widest,
        saved.widest,
    )


def saved_in_forward(
    model: PreTrainedModel,
    batch: dict[str, torch.Tensor],
    saved: SavedTensors,
    emulation: AbstractContextManager[object],
    upcast_outputs: bool,
) -> torch.Tensor:
    """Forward pass and loss with `saved` counting; returns the logits. Works on any device.

    The class loss of encoders is computed outside the model: DeBERTa's own uses `nonzero`, which has no meta kernel.
    accelerate hands out fp32 copies of half-precision outputs under autocast (`convert_outputs_to_fp32`).
    """
    import torch

    labels = batch.pop("labels") if "class_labels" not in batch else batch.pop("class_labels")
    generative = model.config.is_encoder_decoder or labels.dim() == 2
    inputs = {**batch, "labels": labels} if generative else batch
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor), emulation:
        outputs = model(**inputs)
        if not generative:
            upcast = outputs.logits.float() if upcast_outputs else outputs.logits
            torch.nn.functional.cross_entropy(upcast, labels)
        saved.count(outputs.logits.float() if upcast_outputs else outputs.logits)
    logits: torch.Tensor = outputs.logits
    return logits


def batch_tensors(
    architecture: Architecture, rows: int, source: int, target: int, device: str
) -> dict[str, torch.Tensor]:
    """A batch of the family's shape: ids and mask (rows, source), labels (rows,), (rows, source) or (rows, target)."""
    import torch

    shape = (rows, source)
    batch = {
        "input_ids": torch.ones(shape, dtype=torch.long, device=device),
        "attention_mask": torch.ones(shape, dtype=torch.long, device=device),
    }
    if architecture.family == "encoder":
        batch["class_labels"] = torch.zeros(rows, dtype=torch.long, device=device)
    else:
        label_shape = (rows, target or source) if architecture.family == "seq2seq" else shape
        batch["labels"] = torch.ones(label_shape, dtype=torch.long, device=device)
    return batch


def _resident(model: PreTrainedModel) -> set[int]:
    """Identities of the storages of parameters and buffers."""
    tensors = [*model.parameters(), *model.buffers()]
    return {storage_identity(tensor) for tensor in tensors}


@contextmanager
def _layer_deltas(model: PreTrainedModel, saved: SavedTensors) -> Iterator[list[int]]:
    """Bytes each checkpointable layer keeps, collected while the forward pass runs."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    deltas: list[int] = []
    started: list[int] = []
    handles = []

    def before(*_: object) -> None:
        started.append(saved.bytes_total)

    def after(*_: object) -> None:
        deltas.append(saved.bytes_total - started.pop())

    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield deltas
    finally:
        for handle in handles:
            handle.remove()
