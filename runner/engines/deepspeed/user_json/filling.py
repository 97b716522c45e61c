"""The user's JSON completed: what it leaves open is what the configuration says, so that what runs is what the record
says.
"""

from __future__ import annotations

import copy
from typing import Any

from runner.config.schema import RunConfig
from runner.engines.deepspeed.config import zero_section
from runner.engines.deepspeed.json_file import deepspeed_config, set_batch
from runner.engines.deepspeed.user_json.blocks import shift
from runner.engines.deepspeed.user_json.known import AUTO
from runner.errors import Problem, RequestError


def fill(content: dict[str, Any], config: RunConfig, total_steps: int | None) -> dict[str, Any]:
    """The user's JSON without any `auto` and without gaps where the configuration has a value.

    Raises:
        RequestError: naming every `auto` that nothing can fill.
    """
    own = deepspeed_config(config, total_steps)
    filled = copy.deepcopy(content)
    for name in ("optimizer", "scheduler"):
        if name not in filled:
            own.pop(name, None)  # its absence means that the client owns it
    if "optimizer" in own and not filled["optimizer"]["params"]["torch_adam"]:
        own["optimizer"]["params"].pop("fused", None)  # only torch's class takes it
    _fill_schedule(filled, own)
    unknown: list[str] = []
    _fill_node(filled, own, "", unknown)
    if unknown:
        raise RequestError(
            [
                Problem(key, AUTO, "nothing in the run says what this is", "write a value into launcher.config_file")
                for key in unknown
            ]
        )
    set_batch(filled, config)
    if zero_section(config).stage == 3:
        filled["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    return filled


def _fill_schedule(filled: dict[str, Any], own: dict[str, Any]) -> None:
    """A length of the file's moves with the run's schedule where that one is shifted, being without warm-up (see
    `render`).
    """
    if "scheduler" not in filled:
        return
    params = filled["scheduler"].setdefault("params", {})
    if params.get("warmup_num_steps", AUTO) == AUTO and isinstance(params.get("total_num_steps"), int):
        params["total_num_steps"] += shift(own["scheduler"]["params"])


def _fill_node(node: dict[str, Any], own: dict[str, Any], prefix: str, unknown: list[str]) -> None:
    for name, value in node.items():
        ours = own.get(name)
        if isinstance(value, dict):
            _fill_node(value, ours if isinstance(ours, dict) else {}, f"{prefix}{name}.", unknown)
        elif value == AUTO:
            if ours is None:
                unknown.append(f"{prefix}{name}")
            else:
                node[name] = ours
    for name, ours in own.items():
        node.setdefault(name, copy.deepcopy(ours))
