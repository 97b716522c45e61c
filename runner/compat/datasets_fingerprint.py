"""What a data set of the hub holds, as a text that changes with its content.

Private: `Dataset._fingerprint`, by which the library names its own cache files; there is no public name for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import Dataset

CHECKED = {"datasets": ">=4.0,<6"}


def fingerprint(dataset: Dataset) -> str:
    """Hash of the data set and of everything that was done to it since it was read."""
    found: str = dataset._fingerprint
    return found
