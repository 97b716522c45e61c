"""The libraries that ranks need, imported once by their parent, as fast as can be (figures:
benchmarks/start_up_floor.md).
"""

from __future__ import annotations

import gc
import importlib
import traceback
from collections.abc import Sequence

from runner.compat.lazy_import import imported_when_called

LIBRARIES = (
    "torch",
    "torch.distributed.launcher.api",
    "accelerate",
    "accelerate.commands.launch",
    "transformers",
    "transformers.modeling_utils",
    "pyarrow",
    "runner.train.worker",
)


def preload(names: Sequence[str]) -> None:
    """Import modules before ranks are forked; one that cannot be imported is reported on standard error and left to the
    ranks.

    Python's collector looks at everything again and again while thousands of modules appear, a quarter of the
    time, and finds nothing. It stays off in this process; what exists by the end is taken out of its sight, so
    that it does not copy the pages that forked ranks share.
    """
    gc.disable()
    # transformers' losses import SciPy's matching for object detection at every start: 0.4 s in each rank, and no run
    # here calls it.
    with imported_when_called("scipy.optimize", "linear_sum_assignment"):
        for name in names:
            try:
                importlib.import_module(name)
            except Exception:  # noqa: BLE001 - a rank that needs it says so in its own log
                traceback.print_exc()
    gc.freeze()
