"""DeepSpeed's table of compiled ops: one left out, others loaded from where the runner has built them.

Private: `deepspeed.ops.__compatible_ops__` and `_probe_compatible_ops`, the answers to "can this op be built here", and
`OpBuilder._loaded_ops`, the ops that are loaded already. DeepSpeed has no switch for its shared-memory all-reduce,
which it compiles at the first start of every CPU run (25 s, needs g++; a killed build leaves a lock that hangs later
ones), and its own way to a built op starts ninja in every rank, behind torch's lock.
"""

from __future__ import annotations

from types import ModuleType

CHECKED = {"deepspeed": ">=0.19,<0.20"}
SHARED_MEMORY_OP = "deepspeed_shm_comm"


class _OpsAskedLater(dict[str, bool]):
    """DeepSpeed's table of the ops that can be built here, filled when one is asked for."""

    def __missing__(self, name: str) -> bool:
        import deepspeed.ops

        self.update({**deepspeed.ops._probe_compatible_ops(), **self})
        return self[name]


def leave_out_shared_memory_op() -> None:
    """Keep DeepSpeed from compiling its shared-memory all-reduce: gloo does the same for DDP and ZeRO.

    Its table of ops calls the C compiler when it is first looked at; that one answer needs no compiler.
    """
    import deepspeed.ops

    vars(deepspeed.ops).setdefault("__compatible_ops__", _OpsAskedLater())[SHARED_MEMORY_OP] = False


def use_loaded(op: str, module: ModuleType) -> None:
    """Hand DeepSpeed an op that is built and imported: its builder gives out this module instead of building one."""
    from deepspeed.ops.op_builder.builder import OpBuilder

    OpBuilder._loaded_ops[op] = module
