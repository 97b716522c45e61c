"""Generation by beam search without work whose result is known."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def beams_share_source() -> Iterator[None]:
    """Inside, beam search leaves the keys and values of the source where they are.

    After each token it reorders every cache by the beams that were chosen. A row's beams are chosen among its own,
    and all of them look at the same source: reordering its part copies equal tensors onto each other. For a source
    longer than the reply that is most of what is copied. The tokens are the same to the last bit.
    """
    from transformers import EncoderDecoderCache

    before = EncoderDecoderCache.reorder_cache

    def reorder(self: Any, beam_idx: Any) -> None:
        self.self_attention_cache.reorder_cache(beam_idx)

    EncoderDecoderCache.reorder_cache = reorder  # type: ignore[method-assign]
    try:
        yield
    finally:
        EncoderDecoderCache.reorder_cache = before  # type: ignore[method-assign]
