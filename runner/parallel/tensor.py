"""Tensor parallelism: which models can be split, and the part of one that a rank works on.

Source: transformers' own plan of a model type (`base_model_tp_plan` in its configuration class), read as text. Only
plans of Llama's kind are taken: projections by columns, outputs by rows, everything else whole on every rank.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")
LLAMAS = {**dict.fromkeys(COLUMNS, "colwise"), **dict.fromkeys(ROWS, "rowwise")}
WHOLE = "replicated_with_grad_allreduce"  # norms inside a head, as Qwen3's
HEADS, GROUPS, WIDTH = "num_attention_heads", "num_key_value_heads", "intermediate_size"


@lru_cache(maxsize=8)
def _plan(model_type: str) -> dict[str, str]:
    """Projection within a layer → how it is split; empty where transformers has no plan."""
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        return {}
    module = model_type.replace("-", "_")
    try:
        path = Path(found.origin).parent / "models" / module / f"configuration_{module}.py"
        source = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    block = re.search(r"base_model_tp_plan = \{(.*?)\n    \}", source, re.DOTALL)
    return dict(re.findall(r'"layers\.\*\.([\w.]+)": "(\w+)"', block[1])) if block else {}


def why_not(facts: Mapping[str, Any], degree: int) -> str | None:
    """Why a model cannot be split by `degree`; None where it can.

    Args:
        facts: of its architecture, in the words of its configuration class.
    """
    kind = str(facts.get("model_type") or "")
    plan = _plan(kind)
    if not plan:
        return f"transformers has no tensor-parallel plan for model_type={kind or 'unknown'}"
    others = {name: style for name, style in plan.items() if LLAMAS.get(name, WHOLE) != style}
    if others or not plan.keys() >= LLAMAS.keys():
        return f"the plan of model_type={kind} is not of Llama's kind, and no other is proved here"
    for name, size in _divided(facts).items():
        if size % degree:
            return f"{name}={size} is no multiple of {degree}"
    return None


def _divided(facts: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that are divided by the degree."""
    heads = int(facts.get(HEADS) or 0)
    sizes = {HEADS: heads, GROUPS: int(facts.get(GROUPS) or heads), WIDTH: int(facts.get(WIDTH) or 0)}
    return {name: size for name, size in sizes.items() if size}


def local_facts(facts: Mapping[str, Any], degree: int) -> dict[str, Any]:
    """The architecture of the part that a rank works on: fewer heads of the same size, a narrower MLP."""
    if degree == 1:
        return dict(facts)
    head = facts.get("head_dim") or int(facts["hidden_size"]) // int(facts[HEADS])
    return {**facts, "head_dim": head, **{name: size // degree for name, size in _divided(facts).items()}}
