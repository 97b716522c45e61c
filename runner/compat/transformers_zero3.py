"""transformers' knowledge that ZeRO-3 is in use, taken away while a model is built whole.

Private: `_hf_deepspeed_config_weak_ref`. accelerate tells transformers of ZeRO-3 whatever `zero3_init_flag` says, and
transformers offers a way to forget it (`unset_hf_deepspeed_config`), none to put it back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

CHECKED = {"transformers": ">=5.0,<6"}


@contextlib.contextmanager
def not_partitioned_at_construction() -> Iterator[None]:
    """Inside, transformers builds models as if there were no ZeRO-3; afterwards it knows what it knew."""
    from transformers.integrations import deepspeed as integration

    known = integration._hf_deepspeed_config_weak_ref
    if known is None:
        yield
        return
    integration.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        integration._hf_deepspeed_config_weak_ref = known
