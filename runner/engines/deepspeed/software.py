"""DeepSpeed itself, and the compilers and headers that its ops are built with; nothing is imported or started."""

from __future__ import annotations

from runner.config.schema import RunConfig
from runner.engines.base import EngineFile
from runner.engines.deepspeed.config import offload_section
from runner.engines.deepspeed.ops import lacking, needed_ops
from runner.errors import Problem
from runner.machine import is_installed

SYSTEM_PACKAGES = {"g++": "g++", "ninja": "ninja-build", "libaio.h": "libaio-dev"}


def software_problems(config: RunConfig, own_file: EngineFile | None) -> list[Problem]:
    """What this machine lacks for a run under DeepSpeed."""
    if not is_installed("deepspeed"):
        fix = "pip install 'finetune-runner[deepspeed]', or use launcher=ddp"
        return [Problem("launcher", "deepspeed", "DeepSpeed is not installed", fix)]
    return [problem for op in needed_ops(config, own_file) for problem in _op(op, config)]


def _op(op: str, config: RunConfig) -> list[Problem]:
    lacks = lacking(op, config.launcher.device)
    if not lacks:
        return []
    packages = " ".join(SYSTEM_PACKAGES[name] for name in lacks if name in SYSTEM_PACKAGES)
    fix = f"apt install {packages}" if packages else "install the CUDA toolkit"
    if op == "cpu_adam":
        fix += ", or keep torch's slower optimizer with offload.force_cpu_adam=false"
    elif op == "async_io":
        fix += ", or use offload=cpu"
    else:
        fix += ", or write torch_adam: true into launcher.config_file"
    return [
        Problem(
            "offload" if op != "fused_adam" else "optimizer.params",
            offload_section(config).name if op != "fused_adam" else None,
            f"DeepSpeed has to build {op}, which needs {' and '.join(lacks)}",
            fix,
        )
    ]
