"""Imports that libraries make at the top of their modules, put off until they are used: most runs never use them.

Stand-ins in `sys.modules`, because no library offers a switch: transformers' losses import SciPy's matching for object
detection, evaluate the statistics of its evaluators (together 0.8 s and 90 MB in each rank).
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

CHECKED = {"transformers": ">=5.0,<6", "evaluate": ">=0.4.5,<0.5", "scipy": ">=1.11,<2"}


@contextlib.contextmanager
def imported_when_called(module: str, function: str) -> Iterator[None]:
    """Inside, `from MODULE import FUNCTION` gives a function that imports the module when it is called.

    Where the module is imported already, nothing changes. Afterwards an import of the module finds the real one.
    """
    if module in sys.modules:
        yield
        return
    stand_in = types.ModuleType(module)
    setattr(stand_in, function, _calling(module, function))
    sys.modules[module] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(module) is stand_in:
            del sys.modules[module]


def _calling(module: str, function: str) -> Callable[..., Any]:
    def call(*arguments: object, **options: object) -> object:
        return getattr(importlib.import_module(module), function)(*arguments, **options)

    return call
