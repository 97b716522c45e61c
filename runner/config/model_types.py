"""What the installed transformers says of a model type, read from its source text.

Importing its configuration classes takes seconds and imports torch; a check before a run may do neither. What
cannot be found there (another layout, a class that inherits from another one) is left unchecked.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

_ROPE = frozenset(
    {"rope_theta", "rope_scaling", "partial_rotary_factor"}
)  # taken into rope_parameters by classes that have it
_ALWAYS = frozenset(
    {
        "torch_dtype",
        "attn_implementation",
        "experts_implementation",
        "output_attentions",
        "num_labels",
        "name_or_path",
        "_name_or_path",
    }
)
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float,),
    "str": (str,),
    "bool": (bool,),
    "None": (type(None),),
    "list": (list, tuple),
    "dict": (dict,),
}


@dataclass(frozen=True)
class ConfigClass:
    """Keys of one configuration class.

    Attributes:
        types: field → names of the types it may hold; empty where the annotation says something else.
        defaults: field → value, where it stands in the source as a constant.
        aliases: other name of a field → its name in the class.
        read: keys besides the fields that the model's code reads.
        complete: whether these are all its keys.
    """

    types: dict[str, tuple[str, ...]]
    defaults: dict[str, Any]
    aliases: dict[str, str]
    read: frozenset[str] = field(default_factory=frozenset)
    complete: bool = True

    def knows(self, key: str) -> bool:
        """Whether setting the key can change anything."""
        return not self.complete or key in self.types or key in self.aliases or key in self.read

    def holds(self, key: str, value: object) -> bool:
        """Whether the key's annotation allows the value; transformers is strict: no text for a number, no bool for an
        int.
        """
        allowed = self.types.get(self.aliases.get(key, key), ())
        if not allowed:
            return True
        if isinstance(value, bool):
            return "bool" in allowed
        return any(isinstance(value, _TYPES[name]) for name in allowed)


@lru_cache(maxsize=1)
def _root() -> Path | None:
    found = importlib.util.find_spec("transformers")
    return Path(found.origin).parent if found and found.origin else None


@lru_cache(maxsize=16)
def _source(path: str) -> str:
    """Text of a file of transformers; empty where there is none."""
    root = _root()
    try:
        return (root / path).read_text(encoding="utf-8") if root else ""
    except OSError:
        return ""


def _pairs(path: str, name: str) -> dict[str, str]:
    """The text pairs of a mapping that a source file defines as `NAME = OrderedDict(...)`."""
    found = re.search(rf"^{name} = OrderedDict\((.*?)^\)", _source(path), re.MULTILINE | re.DOTALL)
    return dict(re.findall(r'\(\s*"([\w.-]+)",\s*"(\w+)"', found[1])) if found else {}


@lru_cache(maxsize=1)
def model_types() -> dict[str, str]:
    """Model type → name of its configuration class; empty where transformers is not installed."""
    known = _pairs("models/auto/auto_mappings.py", "CONFIG_MAPPING_NAMES")
    later = re.search(
        r"^CONFIG_MAPPING_NAMES\.update\((.*?)^\)",
        _source("models/auto/configuration_auto.py"),
        re.MULTILINE | re.DOTALL,
    )
    return known | dict(re.findall(r'"([\w.-]+)": "(\w+)"', later[1])) if known and later else known


@lru_cache(maxsize=4)
def built_by(auto_class: str) -> frozenset[str]:
    """Model types that an auto class builds; empty where its source says nothing."""
    path = "models/auto/modeling_auto.py"
    mapping = re.search(
        rf"^class {auto_class}\(.*?\):\n(?:.*\n)*?\s+_model_mapping = (\w+)", _source(path), re.MULTILINE
    )
    return frozenset(_pairs(path, f"{mapping[1]}_NAMES")) if mapping else frozenset()


@lru_cache(maxsize=8)
def config_class(model_type: str) -> ConfigClass | None:
    """The configuration class of a model type; None where its source is not found."""
    name = model_types().get(model_type)
    special = _pairs("models/auto/auto_mappings.py", "SPECIAL_MODEL_TYPE_TO_MODULE_NAME")
    module = special.get(model_type, model_type).replace("-", "_")
    body = _class(_source(f"models/{module}/configuration_{module}.py"), name) if name else None
    if body is None:
        return None
    base = _class(_source("configuration_utils.py").partition("\n    def __post_init__")[0], "PreTrainedConfig")
    nodes = [*(base.body if base else []), *body.body]
    types = {key: _type_names(node.annotation) for key, node in _fields(nodes)}
    defaults = {key: node.value.value for key, node in _fields(nodes) if isinstance(node.value, ast.Constant)}
    read = _ALWAYS | _read_by(module) | (_ROPE if "rope_parameters" in types else frozenset())
    plain = base is not None and [ast.unparse(parent) for parent in body.bases] == ["PreTrainedConfig"]
    return ConfigClass(types, defaults, _aliases(body), read, plain)


def _class(source: str, name: str) -> ast.ClassDef | None:
    start = re.search(rf"^class {name}\b", source, re.MULTILINE)
    if start is None:
        return None
    try:
        nodes = ast.parse(source[start.start() :]).body
    except SyntaxError:
        return None
    return nodes[0] if isinstance(nodes[0], ast.ClassDef) else None


def _fields(nodes: list[ast.stmt]) -> Iterator[tuple[str, ast.AnnAssign]]:
    for node in nodes:
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and not ast.unparse(node.annotation).startswith("ClassVar")
        ):
            yield node.target.id, node


def _type_names(annotation: ast.expr) -> tuple[str, ...]:
    """`int | list[int] | None` → int, list, None; empty for an annotation with another type in it."""
    names = [part.split("[")[0].strip() for part in re.sub(r"\[.*?\]+", "", ast.unparse(annotation)).split("|")]
    return tuple(names) if all(name in _TYPES for name in names) else ()


def _aliases(body: ast.ClassDef) -> dict[str, str]:
    for node in body.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "attribute_map":
            return dict(ast.literal_eval(node.value))
    return {}


def _read_by(module: str) -> frozenset[str]:
    """Keys that a model's code reads, though its configuration class does not name them."""
    root = _root()
    files = sorted((root / "models" / module).glob("modeling_*.py")) if root else []
    code = "".join(_source(str(path.relative_to(root))) for path in files if root)
    settings = _source(f"models/{module}/configuration_{module}.py")
    return frozenset(
        re.findall(r"\bconfig\.(\w+)", code)
        + re.findall(r'getattr\((?:self\.)?config, "(\w+)"', code)
        + re.findall(r'kwargs\.(?:get|pop)\("(\w+)"', settings)
    )


@lru_cache(maxsize=1)
def activation_functions() -> frozenset[str]:
    """Names that `hidden_act` and the like may take; empty where the source says nothing."""
    found = re.search(r"^ACT2CLS = \{(.*?)^\}", _source("activations.py"), re.MULTILINE | re.DOTALL)
    return frozenset(re.findall(r'^    "(\w+)":', found[1], re.MULTILINE)) if found else frozenset()
