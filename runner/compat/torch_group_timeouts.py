"""torch: the timeout of process groups that a library has made.

`new_group` without a timeout takes the backend's default (NCCL: 10 minutes), whatever the default group was given, and
DeepSpeed 0.19's groups are made that way. `torch.distributed.distributed_c10d._set_pg_timeout` is the only way to
change it afterwards, and `_world.pg_map` the only list of all groups.
"""

from __future__ import annotations

from datetime import timedelta

CHECKED = {"torch": ">=2.7,<2.14"}


def set_timeouts(timeout: timedelta) -> int:
    """Give every process group of this rank the same timeout; returns their number."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    groups = list(distributed_c10d._world.pg_map) if dist.is_initialized() else []
    for group in groups:
        distributed_c10d._set_pg_timeout(timeout, group)
    return len(groups)
