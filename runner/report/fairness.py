"""Whether the rows of a comparison are comparable: what was checked, what differs, what nobody recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runner.report.aggregation import Row, differing_keys
from runner.report.metrics_log import learning_rates
from runner.report.reading import dig, mapping, sequence
from runner.report.run_view import Run

Verdict = Literal["same", "differs", "not recorded"]
_LEARNING_RATE_TOLERANCE = 1e-6
_MOST_NAMED = 8
_OF_OFFLOAD = ("optimizer class", "optimizer state dtype")  # a CPU optimizer is what offload consists of
_COMPARED_PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "numpy")


@dataclass(frozen=True)
class Check:
    """One fact over all rows; `values` says it per row label where it differs."""

    name: str
    verdict: Verdict
    values: tuple[tuple[str, str], ...] = ()
    expected: bool = False


@dataclass(frozen=True)
class Fairness:
    """All checks of one table, over the `compared` rows that have a completed run."""

    checks: tuple[Check, ...]
    compared: int

    def named(self, verdict: Verdict) -> list[Check]:
        """The checks with this verdict, in order."""
        return [check for check in self.checks if check.verdict == verdict]

    @property
    def unexpected(self) -> list[Check]:
        """What differs although nothing about the table says that it should."""
        return [check for check in self.named("differs") if not check.expected]


def _paths(*paths: str) -> Callable[[Run], Any]:
    """A reader of several record values at once; None when none of them is recorded."""

    def read(run: Run) -> object:
        values = [dig(run.raw, path) for path in paths]
        return None if all(value is None for value in values) else values

    return read


def _data_fingerprints(run: Run) -> object:
    return _paths("data.train.fingerprint", "data.validation.fingerprint")(run)


def _devices(run: Run) -> object:
    """Device kind, models and number of ranks, in whichever of the record's shapes they stand."""
    devices = [mapping(device).get("name", device) for device in sequence(dig(run.raw, "hardware.devices"))]
    kind = dig(run.raw, "observed.device")
    if not devices and kind is None:
        return None
    return [kind, devices, run.world_size, dig(run.raw, "hardware.cpu")]


def _optimizer(run: Run) -> object:
    name = dig(run.raw, "observed.optimizer_class")
    return f"{name} (fused)" if name and dig(run.raw, "observed.optimizer_fused") else name


def _packages(run: Run) -> object:
    versions = mapping(run.raw.get("versions"))
    return {name: versions.get(name) for name in _COMPARED_PACKAGES} if versions else None


_FACTS: tuple[tuple[str, Callable[[Run], Any]], ...] = (
    ("model", _paths("config.model.name", "config.model.hub_id", "config.model.path", "config.model.init",
    "num_parameters")),
    ("data set fingerprint", _data_fingerprints),
    ("global batch size", lambda run: run.global_batch_size),
    ("optimizer class", _optimizer),
    ("optimizer state dtype", _paths("observed.optimizer_state_dtype")),
    ("optimizer settings", _paths("config.optimizer.lr", "config.optimizer.betas", "config.optimizer.eps",
    "config.optimizer.weight_decay", "config.optimizer.momentum")),
    ("gradient clipping", _paths("config.train.gradient_clipping")),
    ("precision", _paths("observed.parameter_dtype", "observed.activation_dtype", "observed.gradient_dtype")),
    ("data order", _paths("data_order_hash")),
    ("samples seen", _paths("samples_seen")),
    ("epochs averaged", lambda run: len(run.epochs) or None),
    ("seed", lambda run: run.seed),
    ("evaluation settings", _paths(
        "config.train.eval_micro_batch_size", "config.train.evaluate_every_epoch", "config.recipe.metric_for_best",
        "data.validation.rows", "config.task",
    )),
    ("warm-up steps left out of step times", _paths("config.train.warmup_steps_not_timed")),
    ("gradient checkpointing", _paths("config.train.gradient_checkpointing")),
    ("devices and ranks", _devices),
    ("code version", _paths("code.git_commit", "code.dirty")),
    ("package versions", _packages),
)  # fmt: skip


def check_fairness(rows: Sequence[Row], expected: frozenset[str] = frozenset()) -> Fairness:
    """Check the rows that have a completed run; `expected` names what differs by the table's design."""
    compared = [row for row in rows if row.completed_runs]
    checks = [_check_fact(name, fact, compared, name in expected) for name, fact in _FACTS]
    checks.insert(6, _check_learning_rate(compared, "learning-rate curve" in expected))
    return Fairness(tuple(checks), len(compared))


def beside_the_method(baseline: Row, row: Row) -> list[str]:
    """What two rows differ in, their method left out; only then does a ratio of their times say
    something of methods.
    """
    first, second = baseline.first, row.first
    names = [check.name for check in check_fairness([baseline, row]).unexpected]
    if dig(first.raw, "config.offload") != dig(second.raw, "config.offload"):
        names = [name for name in names if name not in _OF_OFFLOAD]
    seeds = [{run.seed for run in found.completed_runs} for found in (baseline, row)]
    if seeds[0] != seeds[1] and (seeds[0] <= seeds[1] or seeds[1] <= seeds[0]):  # a repeat is missing, that is all
        names = [name for name in names if name not in ("seed", "data order")]
    made_up = [(run.micro_batch_size, run.gradient_accumulation_steps, run.world_size) for run in (first, second)]
    return names + (["micro batch, accumulation or ranks"] if made_up[0] != made_up[1] else [])


def _check_fact(name: str, fact: Callable[[Run], Any], rows: Sequence[Row], expected: bool) -> Check:
    """Compare one fact; a row's value is the set of its repeats' values, so that seeds may pair up."""
    found = [[fact(run) for run in row.completed_runs] for row in rows]
    if all(
        values == found[0] and None not in values for values in found
    ):  # the common case, without sorting out repeats
        return Check(name, "same", (), expected)
    values = [_distinct(values) for values in found]
    if len({value for value in values if value is not None}) > 1:
        return Check(name, "differs", _by_value(rows, values), expected)
    return Check(name, "not recorded" if None in values else "same", (), expected)


def _distinct(values: Sequence[Any]) -> str | None:
    """The distinct values of a row's completed runs as sorted JSON lines; None when a run does not say."""
    lines = {json.dumps(value, sort_keys=True, default=str) for value in values}
    return None if "null" in lines else "\n".join(sorted(lines))


def _by_value(rows: Sequence[Row], values: Sequence[str | None]) -> tuple[tuple[str, str], ...]:
    """Per row label the parts of the value that are not the same in all rows."""
    parsed = [None if value is None else [json.loads(line) for line in value.split("\n")] for value in values]
    known = [value for value in parsed if value is not None]
    reduce = _differing_parts([value[0] for value in known]) if all(len(value) == 1 for value in known) else _whole
    texts = [
        "not recorded" if value is None else " and ".join(_plain(reduce(item)) for item in value) for value in parsed
    ]
    return tuple((row.label, text) for row, text in zip(rows, texts, strict=True))


def _whole(value: object) -> object:
    return value


def _differing_parts(known: Sequence[Any]) -> Callable[[Any], Any]:
    """A function that leaves, of a list or mapping, only the parts in which the known values are not all alike."""
    first = known[0]
    if isinstance(first, list) and all(isinstance(other, list) and len(other) == len(first) for other in known):
        places = [index for index, item in enumerate(first) if any(other[index] != item for other in known)]
        return lambda value: [value[index] for index in places]
    if isinstance(first, Mapping) and all(isinstance(other, Mapping) for other in known):
        keys = differing_keys(known)
        return lambda value: [f"{key} {value.get(key)}" for key in keys]
    return _whole


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value) or "the same"
    return "none" if value is None else str(value) if not isinstance(value, Mapping) else json.dumps(value)


def _check_learning_rate(rows: Sequence[Row], expected: bool) -> Check:
    """Compare learning rates at equal optimizer steps, each row's first completed run with the first row's."""
    name = "learning-rate curve"
    curves = [learning_rates(row.first.folder) for row in rows]
    if any(not curve for curve in curves):
        return Check(name, "not recorded", (), expected)
    differences = [curve_difference(curves[0], curve) for curve in curves[1:]]
    if all(difference == "" for difference in differences):
        return Check(name, "same", (), expected)
    named = [(row.label, text) for row, text in zip(rows[1:], differences, strict=True) if text]
    return Check(
        name, "differs", ((rows[0].label, "reference"), *((label, text or "") for label, text in named)), expected
    )


def curve_difference(reference: Mapping[int, float], curve: Mapping[int, float]) -> str:
    """'' when both agree (relative 1e-6) at every step both logged, else where they first part."""
    shared = sorted(reference.keys() & curve.keys())
    if not shared:
        return "no optimizer step logged by both"
    for step in shared:
        a, b = reference[step], curve[step]
        if abs(a - b) > _LEARNING_RATE_TOLERANCE * max(abs(a), abs(b)):
            return f"from step {step}: {b:.3g} against {a:.3g}"
    ends = max(reference), max(curve)
    return "" if ends[0] == ends[1] else f"{ends[1]} optimizer steps against {ends[0]}"


def statement(fairness: Fairness) -> list[str]:
    """The footer: one sentence a fact that differs, then what is the same, then what is not recorded."""
    if fairness.compared < 2:
        return ["Fewer than two rows have a completed run, so nothing was compared."]
    lines = [_difference_line(check) for check in sorted(fairness.named("differs"), key=lambda check: check.expected)]
    same, unknown = fairness.named("same"), fairness.named("not recorded")
    if same:
        lines.append(
            f"Checked and the same in all {fairness.compared} rows: {', '.join(check.name for check in same)}."
        )
    if unknown:
        lines.append(f"Not recorded in every row, so not checked: {', '.join(check.name for check in unknown)}.")
    return lines


def _difference_line(check: Check) -> str:
    grouped: dict[str, list[str]] = {}
    for label, value in check.values:
        grouped.setdefault(value, []).append(label)
    values = _first_few([f"{_first_few(labels, ', ')}: {value}" for value, labels in grouped.items()], "; ")
    return f"{'Differs by design' if check.expected else 'DIFFERS'}: {check.name} ({values})."


def _first_few(items: Sequence[str], separator: str) -> str:
    """At most eight items, and how many more there are: a footer is read, not searched."""
    more = [f"and {len(items) - _MOST_NAMED} more"] if len(items) > _MOST_NAMED else []
    return separator.join([*items[:_MOST_NAMED], *more])
