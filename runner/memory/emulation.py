"""Makes a forward pass on the meta device keep what the same pass keeps on a real device.

Meta tensors carry no data, and torch dispatches them as if the device were unknown. Four things then
differ from the pass on a CPU or GPU, and each is put right here:

- autocast has no meta kernels: the casts are done here by the lists that torch documents for CUDA and
  CPU ("Autocast Op Reference", pytorch.org/docs/stable/amp.html), one copy per weight and forward;
- dropout on CUDA keeps a one-byte mask, while the composite path keeps a mask of the input's type;
- scaled_dot_product_attention chooses a fused kernel (which keeps q, k, v, the output and one
  logsumexp per row and head) or the mathematical form (which keeps the probabilities);
- code that looks at values (`if mask.all()`) gets an answer: true where no row is padded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from runner.compat.torch_attention import unfused_attention
from runner.memory.workload import Workload

if TYPE_CHECKING:
    import torch
    from torch.autograd.function import FunctionCtx
    from torch.overrides import TorchFunctionMode

Arguments = tuple[object, ...]
_CPU_HALF = (
    "linear",
    "matmul",
    "bmm",
    "mm",
    "addmm",
    "baddbmm",
    "addbmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
)
_CUDA_HALF = (*_CPU_HALF, "prelu", "einsum", "mv")
_CUDA_FLOAT = (
    "softmax",
    "log_softmax",
    "layer_norm",
    "group_norm",
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "exp",
    "log",
    "pow",
    "rsqrt",
    "cumsum",
    "sum",
    "prod",
    "norm",
    "softplus",
    "reciprocal",
    "cosine_similarity",
    "binary_cross_entropy_with_logits",
)
_CPU_FLOAT = ("mse_loss", "nll_loss", "binary_cross_entropy_with_logits")
_HALF_MATMUL_DUNDERS = ("__matmul__", "__rmatmul__")


def device_emulation(workload: Workload, padded: bool, on_copy: Callable[[torch.Tensor], None]) -> TorchFunctionMode:
    """A context manager to run a meta forward in, as `workload.device` would run it.

    `padded` answers value-dependent questions about masks. Half-precision copies of weights that
    autocast makes are handed to `on_copy`, for the estimate to show them as an item of their own.
    """
    from torch.overrides import TorchFunctionMode

    casts = _Autocast(workload, on_copy) if workload.autocast else None
    specials = _specials(workload.device)

    class Emulation(TorchFunctionMode):
        def __torch_function__(
            self,
            func: Callable[..., object],
            types: Collection[type],
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> object:
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "")
            if name in ("__bool__", "item") and args and getattr(args[0], "is_meta", False):
                return not padded
            if casts is not None:
                args, kwargs = casts.apply(name, args, kwargs)
            special = specials.get(name)
            return special(func, *args, **kwargs) if special else func(*args, **kwargs)

    return Emulation()


class _Autocast:
    """The casts autocast makes around one call, with its cache of weight copies."""

    def __init__(self, workload: Workload, on_copy: Callable[[torch.Tensor], None]) -> None:
        import torch

        self.half = torch.float16 if workload.compute_precision == "fp16" else torch.bfloat16
        cuda = workload.device == "cuda"
        sdpa = ("scaled_dot_product_attention",)
        self.to_half = frozenset((_CUDA_HALF if cuda else _CPU_HALF) + sdpa + _HALF_MATMUL_DUNDERS)
        self.to_float = frozenset(_CUDA_FLOAT if cuda else _CPU_FLOAT)
        self.cache: dict[int, torch.Tensor] = {}
        self.on_copy = on_copy

    def apply(self, name: str, args: Arguments, kwargs: dict[str, Any]) -> tuple[Arguments, dict[str, Any]]:
        """Arguments of a call as autocast would pass them on."""
        import torch

        if name in self.to_half:
            target = self.half
        elif name in self.to_float:
            target = torch.float32
        else:
            return args, kwargs
        cast = functools.partial(self._cast, target=target)
        return _map(cast, args), {key: cast(value) for key, value in kwargs.items()}

    def _cast(self, value: object, target: torch.dtype) -> object:
        import torch

        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == target:
            return value
        if target == torch.float32 or not (value.is_leaf and value.requires_grad):
            return value.to(target)
        if id(value) not in self.cache:
            self.cache[id(value)] = value.to(target)
            self.on_copy(self.cache[id(value)])
        return self.cache[id(value)]


def _map(function: Callable[[object], object], args: Sequence[object]) -> Arguments:
    return tuple(_map(function, arg) if isinstance(arg, (tuple, list)) else function(arg) for arg in args)


def _specials(device: str) -> dict[str, Callable[..., Any]]:
    """Functions whose kept tensors depend on the device."""
    found: dict[str, Callable[..., Any]] = {"scaled_dot_product_attention": functools.partial(_attention, device)}
    if device == "cuda":
        found["dropout"] = _cuda_dropout
    return found


def _cuda_dropout(
    function: Callable[..., torch.Tensor],
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """CUDA's fused dropout keeps a boolean mask, one byte an element."""
    import torch

    if not training or p == 0.0:
        return function(input, p, training, inplace)
    kept: torch.Tensor = torch.ops.aten.native_dropout(input, p, True)[0]
    return kept


def _attention(
    device: str,
    _function: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention as the device's kernel keeps it: CPU has no fused kernel with dropout, CUDA has."""
    import torch

    if device == "cpu" and dropout_p > 0.0:
        return unfused_attention(
            query, key, value, attn_mask, dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # Fused kernels add the mask: a boolean one is turned into numbers of the query's type, per call.
        attn_mask = torch.zeros(attn_mask.shape, dtype=query.dtype, device="meta")
    output: torch.Tensor = _fused_attention().apply(query, key, value, attn_mask)  # type: ignore[no-untyped-call]
    return output


@functools.lru_cache(maxsize=1)
def _fused_attention() -> type[torch.autograd.Function]:
    import torch

    class FusedAttention(torch.autograd.Function):
        """Shapes (rows, heads, length, width); keeps q, k, v, mask, output and fp32 logsumexp (rows, heads, length)."""

        @staticmethod
        def forward(
            ctx: FunctionCtx,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            mask: torch.Tensor | None,
        ) -> torch.Tensor:
            rows, heads, length, _ = query.shape
            # Kernels write (rows, length, heads, width), so that merging the heads afterwards copies nothing.
            output = query.new_empty(rows, length, heads, value.shape[-1]).transpose(1, 2)
            logsumexp = torch.empty(rows, heads, length, dtype=torch.float32, device=query.device)
            kept = [query, key, value, output, logsumexp]
            ctx.save_for_backward(*kept, *([] if mask is None else [mask]))
            return output

        @staticmethod
        def backward(_ctx: FunctionCtx, *_gradients: torch.Tensor) -> NoReturn:
            raise RuntimeError("an estimate runs no backward pass")

    return FusedAttention
