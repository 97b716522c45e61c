"""Kinds of values that keys of the configuration take, and the base of its sections."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


def _whole(value: object) -> object:
    """Accept `2e8` where an integer is meant: OmegaConf reads it as the float 200000000.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _numeric_text(value: object) -> object:
    """Accept a quoted number such as `"3e-4"`; anything that is no number is left to the validator."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _in_64_bits(value: int) -> int:
    """Refuse what neither torch nor DeepSpeed could hold."""
    if not -(2**63) <= value < 2**63:
        raise PydanticCustomError("64_bits", "input should fit in 64 bits")
    return value


def no_truth_value(value: object) -> object:
    """Refuse `true` where a number is meant: Python would count it as 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "input should be a number, not true or false")
    return value


def integer_text(value: object) -> object:
    """An integer where text is meant is that text: YAML and Hydra read `note=42` and
    `launcher.gpu_ids=0` as numbers.
    """
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _settings(value: object) -> object:
    return _dotted(value) if isinstance(value, dict) else value


def _dotted(value: dict[str, object]) -> dict[str, object]:
    """`a.b=c` as Hydra reads it, {a: {b: c}}, is the setting a.b again, its value as text."""
    flat: dict[str, object] = {}
    for name, item in value.items():
        if isinstance(item, dict):
            flat |= {f"{name}.{inner}": text for inner, text in _dotted(item).items()}
        elif isinstance(item, (bool, int, float)):
            flat[name] = str(item).lower()
        else:
            flat[name] = item
    return flat


def _finite(value: object, key: str = "") -> object:
    """Infinity and NaN are no JSON, wherever in an open mapping they stand."""
    if isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError(
            "finite_inside", "input should be a finite number", {"inside": key, "found": str(value)}
        )
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inside:
        _finite(item, f"{key}.{name}" if key else str(name))
    return value


Int = Annotated[
    int,
    BeforeValidator(_whole),
    BeforeValidator(_numeric_text),
    BeforeValidator(no_truth_value),
    AfterValidator(_in_64_bits),
]
Float = Annotated[float, BeforeValidator(_numeric_text), BeforeValidator(no_truth_value), Field(allow_inf_nan=False)]
Text = Annotated[str, BeforeValidator(integer_text)]
Settings = Annotated[dict[str, str], BeforeValidator(_settings)]
Open = Annotated[dict[str, Any], AfterValidator(_finite)]
Count = Annotated[Int, Field(ge=1)]
DecayRate = Annotated[Float, Field(ge=0.0, lt=1.0)]
Ranks = Annotated[Int, Field(ge=1, le=1024)]
Threads = Annotated[Int, Field(ge=1, le=4096)]


class Section(BaseModel):
    """Base of all sections: an unknown key is an error, assignment is checked too."""

    model_config = ConfigDict(extra="forbid", strict=False, validate_assignment=True)
