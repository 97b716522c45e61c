"""Which tensors share memory, also on the meta device.

Private: `UntypedStorage._cdata`, the address of the storage's C++ object. The public `data_ptr()` is 0 for every
storage on the meta device, and `untyped_storage()` makes a new Python object at each call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CHECKED = {"torch": ">=2.7,<3"}


def storage_identity(tensor: torch.Tensor) -> int:
    """Equal for tensors of one storage, as long as it lives."""
    address: int = tensor.untyped_storage()._cdata
    return address
