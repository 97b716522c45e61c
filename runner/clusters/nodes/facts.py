"""What every node tells of itself before ranks start, and what does not fit together."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from runner.config.schema import RunConfig
from runner.errors import Problem, RequestError
from runner.mappings import flatten
from runner.preflight.check import Checked
from runner.rundir import provenance


@dataclass
class Facts:
    """One node before the start.

    Attributes:
        config: the resolved configuration without what differs by node, flat: dotted key → value.
        code: hash of the runner's files inside a rank and of the recipe's folder.
        data: hash of the rows' files, or of what names them.
        head_address: the head's address as this node reaches it.
        problems: what this node's own checks found.
    """

    host: str
    config: dict[str, Any]
    versions: dict[str, str]
    code: str | None
    data: str | None
    address: str = ""
    head_address: str = ""
    problems: list[dict[str, Any]] = field(default_factory=list)


def facts_of(config: RunConfig, checked: Checked | None, problems: list[Problem]) -> Facts:
    """This node's own."""
    from runner.sweep.identity import code_version, data_fingerprint

    without_weights = config.model_copy(deep=True)
    without_weights.model.path = None  # its files carry times, which differ between disks
    return Facts(
        socket.gethostname(),
        flatten(config.model_dump(mode="json", exclude={"cluster": True, "note": True})),
        provenance.versions(),
        code_version(checked) if checked else None,
        data_fingerprint(without_weights) if checked else None,
        problems=[asdict(problem) for problem in problems if problem.severity == "error"],
    )


def own_problems(error: RequestError) -> list[Problem]:
    """Errors of a check, for `facts_of`."""
    return [problem for problem in error.problems if problem.severity == "error"]


def findings(nodes: Mapping[int, Facts]) -> list[Problem]:
    """Everything that stands in the way on any node, and what differs between nodes; node 0 is the measure."""
    head = nodes[0]
    found = _own(nodes)
    for number, node in sorted(nodes.items()):
        if number == 0:
            continue
        for key in sorted({*head.config, *node.config}):
            ours, theirs = head.config.get(key), node.config.get(key)
            if ours != theirs:
                found.append(_differs(key, theirs, number, node, f"{ours} on the head ({head.host})"))
        for name in sorted({*head.versions, *node.versions}):
            ours, theirs = head.versions.get(name), node.versions.get(name)
            if ours != theirs:
                found.append(_differs(name, theirs, number, node, f"version {ours} on the head ({head.host})"))
        if node.code and head.code and node.code != head.code:
            found.append(
                _differs("code", node.code, number, node, "the runner's or the recipe's files are others on the head")
            )
        if node.data and head.data and node.data != head.data:
            found.append(
                _differs("dataset", node.data, number, node, "the files of the data set are others on the head")
            )
    return found


def _differs(key: str, value: object, number: int, node: Facts, why: str) -> Problem:
    return Problem(
        key, value, f"on node {number} ({node.host}); {why}", "make them equal and start again on every node"
    )


def _own(nodes: Mapping[int, Facts]) -> list[Problem]:
    """Findings of each node, those of all nodes once."""
    told: dict[Problem, list[int]] = {}
    for number, node in nodes.items():
        for item in node.problems:
            told.setdefault(Problem(**item), []).append(number)
    return [
        problem
        if len(numbers) == len(nodes)
        else replace(problem, why=f"on {', '.join(f'node {n} ({nodes[n].host})' for n in numbers)}: {problem.why}")
        for problem, numbers in told.items()
    ]
