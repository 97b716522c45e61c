"""What one forward pass keeps for the backward pass, counted on the real model class without data.

The forward pass runs on the meta device under `torch.autograd.graph.saved_tensors_hooks`
(docs.pytorch.org, "Hooks for autograd saved tensors"): every tensor autograd keeps is seen once, its
storage counted once, parameters and buffers left out. A kept storage either belongs to the rows of the batch or does
not, so one pass with a prime number of rows that no other size is a multiple of gives every batch size. The same pass
tells what gradient checkpointing keeps: what is saved outside the layers, and the inputs of each layer.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from runner.compat.torch_storage import storage_identity
from runner.memory import pass_cache
from runner.memory.architecture import meta_model, quiet_transformers
from runner.memory.facts import Architecture, ModelFacts
from runner.memory.items import Item
from runner.memory.workload import Precision, StateLayout, Workload

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

TRACED_ROWS = 10_007  # a prime: a size that it divides is one of rows


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


@dataclass(frozen=True)
class Size:
    """Bytes that do not depend on the batch, and bytes of each row."""

    fixed: int = 0
    per_row: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.fixed + other.fixed, self.per_row + other.per_row)

    def __sub__(self, other: Size) -> Size:
        return Size(self.fixed - other.fixed, self.per_row - other.per_row)

    def at(self, rows: int) -> int:
        """Bytes of a batch."""
        return self.fixed + rows * self.per_row


@dataclass(frozen=True)
class Kept:
    """What autograd keeps of one pass; `widest` are the largest kept tensor of each kind."""

    activations: Size
    logits: Size
    copies: Size
    widest: tuple[Size, ...]


@dataclass(frozen=True)
class Trace:
    """One forward pass: kept without and with gradient checkpointing, the layers that it would recompute.

    Attributes:
        logits_gradient: of the loss, in fp32; zero where the logits are small.
        thrifty: None for a class that knows no gradient checkpointing.
    """

    plain: Kept
    thrifty: Kept | None
    layers: tuple[Size, ...]
    logits_gradient: Size


class SavedTensors:
    """Storages kept by autograd, each once.

    Args:
        ignored: identities of storages that are there anyway.
        vocab_size: last dimension of what counts as logits; 0 where there are none.
        rows: of the traced batch; with 0 everything is counted as not depending on it.
    """

    def __init__(self, ignored: set[int], vocab_size: int = 0, rows: int = 0) -> None:
        self.ignored, self.vocab_size, self.rows = ignored, vocab_size, rows
        self.activations = self.logits = self.copies = Size()
        self._widest = {"fixed": Size(), "per_row": Size()}
        self._alive: dict[int, torch.UntypedStorage] = {}
        self._copies: set[int] = set()

    @property
    def size(self) -> Size:
        """All that is kept."""
        return self.activations + self.logits + self.copies

    @property
    def bytes_total(self) -> int:
        """All that is kept, for the batch that was traced."""
        return self.size.at(self.rows)

    @property
    def kept(self) -> Kept:
        """What was counted."""
        return Kept(self.activations, self.logits, self.copies, tuple(self._widest.values()))

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
        size = self._size(storage.nbytes())
        if key in self._copies:
            self.copies += size
        elif self.vocab_size > 1 and tensor.dim() > 1 and tensor.shape[-1] == self.vocab_size:
            self.logits += size
        else:
            self.activations += size
            kind = "per_row" if size.per_row else "fixed"
            self._widest[kind] = max(self._widest[kind], size, key=lambda each: (each.per_row, each.fixed))

    def _size(self, number: int) -> Size:
        return Size(number) if not self.rows or number % self.rows else Size(0, number // self.rows)


class _Passes(SavedTensors):
    """The same forward pass counted twice: as it is, and as gradient checkpointing would keep it."""

    def __init__(self, ignored: set[int], vocab_size: int = 0, rows: int = 0) -> None:
        super().__init__(ignored, vocab_size, rows)
        self.thrifty = SavedTensors(ignored, vocab_size, rows)
        self.layers: set[Size] = set()
        self._started: list[Size] = []

    def note_copy(self, tensor: torch.Tensor) -> None:
        super().note_copy(tensor)
        self.thrifty.note_copy(tensor)

    def count(self, tensor: torch.Tensor) -> None:
        super().count(tensor)
        if not self._started:
            self.thrifty.count(tensor)

    def enter(self, _: object, inputs: tuple[object, ...]) -> None:
        """Before a layer: checkpointing keeps its positional tensors (torch.utils.checkpoint, non-reentrant)."""
        import torch

        for value in inputs:
            if isinstance(value, torch.Tensor) and not self._started:
                self.thrifty.count(value)
        self._started.append(self.size)

    def leave(self, *_: object) -> None:
        """After a layer: what it kept."""
        self.layers.add(self.size - self._started.pop())


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
    rows, trace = workload.micro_batch_size, _trace(_trace_key(workload))
    thrifty = trace.thrifty if workload.gradient_checkpointing else None
    kept = thrifty or trace.plain
    return Activations(
        kept=kept.activations.at(rows),
        logits=kept.logits.at(rows),
        logits_gradient=trace.logits_gradient.at(rows),
        autocast_copies=kept.copies.at(rows),
        autocast_cache=trace.plain.copies.at(rows),
        layer=max((size.at(rows) for size in trace.layers), default=0),
        widest=max(size.at(rows) for size in kept.widest),
        widest_recomputed=max(size.at(rows) for size in trace.plain.widest),
    )


def _trace_key(workload: Workload) -> Workload:
    """The workload with everything that does not touch a forward pass set to one value, so that traces are shared."""
    return Workload(
        architecture=workload.local_architecture,
        layout=_ForwardFormat(workload.autocast, workload.layout.weight_bytes(workload.compute_precision)),
        micro_batch_size=0,
        source_length=workload.source_length,
        target_length=workload.target_length,
        precision=workload.compute_precision,
        device=workload.device,
    )


@functools.lru_cache(maxsize=64)
def _trace(key: Workload) -> Trace:
    """The forward pass of this process, or an earlier one's."""
    return pass_cache.kept(key, Trace, lambda: _traced(key))


def _traced(key: Workload, rows: int = TRACED_ROWS) -> Trace:
    """Run one meta forward pass and add up what is kept."""
    from runner.memory.emulation import device_emulation

    model = meta_model(key.architecture, _weight_dtype(key))
    encoder = key.architecture.family == "encoder"
    vocab = int(getattr(model.config.get_text_config(), "vocab_size", 0) or 0)
    saved = _Passes(_resident(model), 0 if encoder else vocab, rows)
    batch = batch_tensors(key.architecture, rows, key.source_length, key.target_length, device="meta")
    emulation = device_emulation(key, key.architecture.family != "causal_lm", saved.note_copy)
    with quiet_transformers(), _layers_watched(model, saved):
        logits = saved_in_forward(model, batch, saved, emulation, key.autocast)
    gradient = Size() if encoder else Size(0, logits.numel() // rows * 4)
    thrifty = saved.thrifty.kept if model.supports_gradient_checkpointing else None
    return Trace(saved.kept, thrifty, tuple(sorted(saved.layers, key=lambda each: each.per_row)), gradient)


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
def _layers_watched(model: PreTrainedModel, saved: _Passes) -> Iterator[None]:
    """Tell `saved` where each checkpointable layer begins and ends, while the forward pass runs."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    handles = []
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            handles += [module.register_forward_pre_hook(saved.enter), module.register_forward_hook(saved.leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
