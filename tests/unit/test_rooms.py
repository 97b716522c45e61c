"""The order of the rooms, read from the source: no import cycle, no question which engine it is, private names in
compat.
"""

from __future__ import annotations

import ast
import re
from typing import get_args

import pytest

from runner import engines
from runner.sweep.imports import PACKAGE, file_of, imported
from tests.unit.test_compat import private_uses

MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imports() -> dict[str, set[str]]:
    """Module → modules of the package that it imports, also inside functions."""
    found = {}
    for name, path in MODULES.items():
        targets = {target for target in imported(path) if file_of(target) is not None} - {name}
        # `from runner.config import plan` is about `runner.config.plan`, not about what the package's own file offers.
        within = {target.rpartition(".")[0] for target in targets}
        found[name] = {target for target in targets if not (target in within and name.startswith(f"{target}."))}
    return found


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1:
                found.append(sorted(part))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def test_a_cycle_would_be_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_no_module_imports_itself_through_others() -> None:
    """Also through imports inside functions."""
    assert cycles(imports()) == []


# Rooms at the top of the house, and who may come in from outside the room itself. `launch.node` is a program of its
# own, which is started on other machines, as `__main__` is on this one.
ABOVE = {
    "cli": {"__main__", "api"},
    "clusters": {"cli", "launch.node"},
    "sweep": {"cli", "clusters"},  # clusters: what decides a cell's identity is what two nodes must share
    "fit": {"cli", "sweep"},
    "single_run": {"cli", "clusters"},
    "resume": {"cli", "single_run", "clusters"},
    "execution": {"cli", "clusters", "fit", "resume", "single_run", "sweep"},
    "api": {""},
}


def test_rooms_at_the_top_are_entered_from_above_only() -> None:
    found = {
        f"{module} imports {target}"
        for module, targets in imports().items()
        for target in targets
        for room, allowed in ABOVE.items()
        if f"{target}.".startswith(f"runner.{room}.")
        and not any(f"{module}.".startswith(f"runner.{name}.") for name in {room, *allowed} - {""})
        and not (module == "runner" and "" in allowed)
    }
    assert found == set()


def test_a_cluster_is_described_where_the_checks_can_read_it() -> None:
    """Every cluster has an object and a description, and every key of the section is read by one."""
    from runner import clusters
    from runner.config.clusters import KINDS
    from runner.config.schema import ClusterConfig

    names = get_args(ClusterConfig.model_fields["name"].annotation)
    assert sorted(KINDS) == sorted(names)
    assert [clusters.by_name(name).name for name in names] == list(names)
    assert set().union(*(kind.keys for kind in KINDS.values())) == set(ClusterConfig.model_fields) - {"name"}


def test_nobody_outside_engines_asks_which_engine_it_is() -> None:
    """Neither the launcher's name nor a ZeRO stage is compared with anything."""
    asked = re.compile(r"launcher\.name\s*(==|!=|in\b|not in\b)|zero\.stage\s*(==|!=|<|>|in\b|not in\b)")
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in MODULES.values()
        if PACKAGE / "engines" not in path.parents
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if asked.search(line)
    ]
    assert found == []


def test_nobody_outside_engines_imports_one_of_them() -> None:
    """They ask the engine that a configuration names, or every engine."""
    rooms = tuple(f"runner.engines.{name}" for name in engines.names())
    found = {
        f"{module} imports {target}"
        for module, targets in imports().items()
        for target in targets
        if target.startswith(rooms) and not module.startswith("runner.engines.")
    }
    assert found == set()


def test_private_names_of_libraries_are_used_in_compat_only() -> None:
    assert [use for path in MODULES.values() if path.parent != PACKAGE / "compat" for use in private_uses(path)] == []


# A fact → how its own reading looks in the source, and the one module that may hold that.
OWNERS = {
    "the boot id": (r"random/boot_id", "machine"),
    "the host's memory, with the control group's limit": (
        r"cgroup/memory|virtual_memory\(\)\.total|SC_PHYS_PAGES",
        "machine",
    ),
    "the largest resident set of a process": (r"startswith\(.VmHWM|ru_maxrss", "machine"),
    "the record's file name": (r"[\"']record\.json[\"']", "record_format"),
    "the record's schema version": (r"SCHEMA_VERSION = ", "record_format"),
    "dotted keys of nested mappings": (r"def _?flat(ten|_mapping|_config_of)?\(", "mappings"),
}


@pytest.mark.parametrize("fact", OWNERS)
def test_a_fact_has_one_owner(fact: str) -> None:
    pattern, owner = OWNERS[fact]
    found = {
        name
        for name, path in MODULES.items()
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(pattern, line) and not line.lstrip().startswith(("#", '"""'))
    }
    assert found == {f"runner.{owner}"}


def test_no_room_is_called_utils() -> None:
    names = {part for path in MODULES.values() for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert not names & {"utils", "util", "helpers", "common", "misc", "manager", "handler"}


def test_files_and_functions_can_be_seen_at_once() -> None:
    long = [name for name, path in MODULES.items() if len(path.read_text(encoding="utf-8").splitlines()) > 500]
    long += [
        f"{name}.{node.name}"
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _lines(node) > 60
    ]
    assert long == []


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1
