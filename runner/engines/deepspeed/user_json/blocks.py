"""The `optimizer` and `scheduler` blocks: which types the run can state truly, and what their parameters may say.

Everything that judges a run (plan, memory estimate, space for checkpoints, record) knows AdamW and two of DeepSpeed's
schedules. A block that makes something else run is refused, or reported where only the way there differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runner.config.schema import RunConfig
from runner.engines.deepspeed.config import offload_section
from runner.engines.deepspeed.user_json.known import AUTO, OPTIMIZER_PARAMS, WARMUP_PARAMS
from runner.engines.deepspeed.user_json.reading import FIX, as_written, get, unknown_key
from runner.errors import Problem, nearest

ADAM = ("AdamW", "Adam")  # one algorithm: DeepSpeed's Adam decouples weight decay, too, unless adam_w_mode is false
OTHER_OPTIMIZERS = ("Adagrad", "Lamb", "Lion", "Muon", "MuAdam", "MuAdamW", "MuSGD")
TORCH_OPTIMIZERS = (
    "Adadelta",
    "Adafactor",
    "Adamax",
    "ASGD",
    "LBFGS",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SparseAdam",
)  # DeepSpeed looks there for other names
SCHEDULES = {"WarmupDecayLR": "linear", "WarmupLR": "constant"}
OTHER_SCHEDULES = ("WarmupCosineLR", "OneCycle", "LRRangeTest")
_SHARED = {"lr", "betas", "eps", "weight_decay", "torch_adam", "adam_w_mode", "fp32_optimizer_states", "amsgrad"}
TAKES = {  # parameters by the class that DeepSpeed builds
    "torch AdamW": _SHARED | {"foreach", "fused", "maximize", "capturable", "differentiable"},
    "DeepSpeedCPUAdam": _SHARED | {"bias_correction"},
    "DeepSpeed FusedAdam": _SHARED | {"bias_correction", "set_grad_none"},
}
FIXED = {
    "adam_w_mode": True,
    "amsgrad": False,
    "maximize": False,
    "bias_correction": True,
    "fp32_optimizer_states": True,
}  # another value is another optimizer


def adam_class(content: dict[str, Any], config: RunConfig) -> str:
    """The class that DeepSpeed builds for the file's optimizer block; `config` is resolved."""
    torch_adam = get(content, "optimizer.params.torch_adam")
    if isinstance(torch_adam, bool):
        return (
            "torch AdamW"
            if torch_adam
            else "DeepSpeedCPUAdam"
            if offload_section(config).optimizer != "none"
            else "DeepSpeed FusedAdam"
        )
    if offload_section(config).optimizer != "none":
        return "DeepSpeedCPUAdam" if offload_section(config).force_cpu_adam else "torch AdamW"
    # On a CPU DeepSpeed would compile its fused Adam first, for a minute, to compute the same.
    return "torch AdamW" if config.launcher.device == "cpu" or config.optimizer.fused is True else "DeepSpeed FusedAdam"


def check_types(content: dict[str, Any]) -> list[Problem]:
    """Blocks whose type is missing, unknown, or not one that the run can state."""
    why_optimizer = "DeepSpeed has it, but plan, memory estimate and record of a run are those of AdamW"
    why_schedule = (
        "DeepSpeed has it, but it is none of the learning rates a run can state (plan and record would name another)"
    )
    return [
        *_type(content, "optimizer", ADAM, (*OTHER_OPTIMIZERS, *TORCH_OPTIMIZERS), why_optimizer),
        *_type(content, "scheduler", tuple(SCHEDULES), OTHER_SCHEDULES, why_schedule),
    ]


def _type(
    content: dict[str, Any], block: str, taken: tuple[str, ...], others: tuple[str, ...], why: str
) -> list[Problem]:
    if block not in content:
        return []
    name, known = content[block].get("type"), {each.lower(): each for each in (*taken, *others)}
    fix = f"use {' or '.join(taken)}, or remove the {block} block from launcher.config_file: the client owns it then"
    if not isinstance(name, str):
        said = as_written(name) if "type" in content[block] else None
        return [
            Problem(
                f"{block}.type", said, f"this must be one of DeepSpeed's {block}s ({', '.join(known.values())})", fix
            )
        ]
    # DeepSpeed takes its own optimizers in any case; schedules as they are written.
    meant = known.get(name.lower()) if block == "optimizer" else name if name in known.values() else None
    if meant is not None:
        return [] if meant in taken else [Problem(f"{block}.type", name, why, fix)]
    near = nearest(name, known.values())
    fix = f"did you mean {near}?" if near else fix
    return [Problem(f"{block}.type", name, f"DeepSpeed has no such {block} (it has {', '.join(known.values())})", fix)]


def check_optimizer(content: dict[str, Any], config: RunConfig) -> list[Problem]:
    """Parameters of AdamW that its class does not take, or that make another optimizer of it; `config` is resolved."""
    name, problems = adam_class(content, config), []
    for key, value in (get(content, "optimizer.params") or {}).items():
        path = f"optimizer.params.{key}"
        if key not in OPTIMIZER_PARAMS:
            problems.append(unknown_key(path, TAKES[name]))
        elif key not in TAKES[name]:
            problems.append(
                Problem(
                    path, value, f"{name}, which is what runs, does not take it", "remove it from launcher.config_file"
                )
            )
        elif key in FIXED and value not in (FIXED[key], AUTO):
            problems.append(
                Problem(
                    path,
                    value,
                    "this is another optimizer than the AdamW of plan and record",
                    "remove it from launcher.config_file",
                )
            )
    return problems


def check_schedule(content: dict[str, Any], warmup_steps: int) -> list[Problem]:
    """Parameters that the schedule does not take, that DeepSpeed refuses late, or that make another curve of it."""
    params, name = get(content, "scheduler.params") or {}, content["scheduler"]["type"]
    taken = {*WARMUP_PARAMS, "total_num_steps"} if name == "WarmupDecayLR" else set(WARMUP_PARAMS)
    problems = [
        unknown_key(f"scheduler.params.{key}", taken) for key in params if key not in {*taken, "total_num_steps"}
    ]
    if "total_num_steps" in params and "total_num_steps" not in taken:
        problems.append(
            Problem(
                "scheduler.params.total_num_steps",
                params["total_num_steps"],
                f"{name} never ends and does not take it",
                "remove it, or use type WarmupDecayLR",
            )
        )
    if params.get("warmup_num_steps") == 0:
        fix = "write auto (the runner finds an equal schedule), or remove the scheduler block from launcher.config_file"
        problems.append(Problem("scheduler.params.warmup_num_steps", 0, "DeepSpeed refuses a warm-up of 0 steps", fix))
    kind, low, index = (
        params.get(key, default)
        for key, default in (("warmup_type", "linear"), ("warmup_min_lr", 0), ("last_batch_iteration", -1))
    )
    if kind not in ("linear", "log", AUTO):
        problems.append(Problem("scheduler.params.warmup_type", kind, "DeepSpeed knows linear and log", FIX))
    elif kind == "log" and warmup_steps:
        problems.append(
            Problem(
                "scheduler.params.warmup_type",
                kind,
                "the warm-up is logarithmic, another one than every other launcher's",
                "",
                "notice",
            )
        )
    if low not in (0, AUTO):
        problems.append(
            Problem(
                "scheduler.params.warmup_min_lr",
                low,
                "the learning rate begins, and after a decay ends, there and not at 0 as under every other launcher",
                "",
                "warning",
            )
        )
    if index not in (-1, AUTO):
        problems.append(
            Problem(
                "scheduler.params.last_batch_iteration",
                index,
                "the run begins its schedule at the first step",
                "remove it from launcher.config_file",
            )
        )
    return problems


def other_length(content: dict[str, Any] | None, config: RunConfig, total_steps: int | None) -> list[Problem]:
    """A warning where the file's schedule is longer or shorter than the run."""
    stated = get(content or {}, "scheduler.params.total_num_steps") if config.scheduler.name == "linear" else None
    if config.mode != "train" or total_steps is None or stated in (None, AUTO, total_steps):
        return []
    what = (
        f"is 0 from step {max(stated, config.scheduler.warmup_steps)} on"
        if stated < total_steps
        else "does not fall to 0"
    )
    return [
        Problem(
            "scheduler.params.total_num_steps",
            stated,
            f"the run has {total_steps} optimizer steps, so the learning rate {what}",
            'write "auto"',
            "warning",
        )
    ]


def schedule_words(content: dict[str, Any] | None, config: RunConfig, total_steps: int | None) -> str:
    """What the file's schedule does otherwise than the configuration's name of it says; empty where nothing."""
    params = get(content or {}, "scheduler.params") or {}
    length = params["total_num_steps"] - shift(params) if "total_num_steps" in params else total_steps
    said: Iterable[str] = (
        "logarithmic warm-up" if params.get("warmup_type") == "log" and config.scheduler.warmup_steps else "",
        f"from {params['warmup_min_lr']:g}" if params.get("warmup_min_lr") else "",
        f"to step {length}" if length != total_steps else "",
    )
    return "".join(f", {words}" for words in said if words)


def shift(params: dict[str, Any]) -> int:
    """Steps by which a schedule without warm-up lies behind its index (see `render`)."""
    return 2 if params.get("last_batch_iteration") == 2 and params.get("warmup_num_steps") == 2 else 0


def unshifted(content: dict[str, Any]) -> bool:
    """Whether the schedule is one that the runner rendered without warm-up (a run's `ds_config.json`); its warm-up
    becomes `auto`, in place.
    """
    params = get(content, "scheduler.params") or {}
    if not shift(params):
        return False
    del params["last_batch_iteration"]
    params["warmup_num_steps"] = AUTO
    if isinstance(params.get("total_num_steps"), int):
        params["total_num_steps"] -= 2
    return True
