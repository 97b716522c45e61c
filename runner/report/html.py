"""The page: one self-contained file, no request to anywhere, everything from records escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from runner.report.aggregation import Row, label_rows, setting_beside_method
from runner.report.columns import Column, bytes_text, metric_text, ratio_text, seconds_text, table_columns
from runner.report.fairness import beside_the_method, statement
from runner.report.figures import (
    MOST_BARS,
    MOST_CURVES,
    Bars,
    Confusion,
    coinciding,
    configuration_differences,
    confusion,
    curves,
    judging_metric,
    largest_batch_bars,
    memory_pairs,
    phase_stacks,
    styles,
    train_time_bars,
)
from runner.report.reading import mapping
from runner.report.run_view import Run
from runner.report.tables import DEFINITIONS, Comparison, Table, Workload, largest_batch, workload_text

_INSTALL = "the page needs jinja2 and plotly: pip install 'finetune-runner[report]'"

_MOST_CONFUSIONS = 6
_LONGEST_WORD = 24
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD}}}(?=\S)")
_LETTER, _GAP, _DENSE_LETTER, _DENSE_GAP = (
    8.4,
    18,
    7.2,
    12,
)  # pixels of a letter and between columns, for two sizes of type
_DENSE_FROM = 12  # columns
# A ratio without an interval is put into a headline from here on: below it, one run is mostly noise.
_WORTH_SAYING = 1.05


class MissingExtra(Exception):
    """A package of the extra `report` is not installed; the message is one line for the user."""


@dataclass(frozen=True)
class TableView:
    """A table as the template takes it."""

    table: Table
    columns: list[Column]
    statement: list[str]
    train_bars: Bars | None
    batch_bars: Bars | None
    dense: bool
    least_width: int


@dataclass(frozen=True)
class Panel:
    """All of one workload: its tables and what is drawn about its rows."""

    title: str
    headlines: list[str]
    tables: list[TableView]
    tiles: list[tuple[str, str, str]]
    curves: list[dict[str, Any]]
    coinciding: bool
    metric: str
    confusions: list[Confusion]
    rows_left_out: int
    memory: list[Any]
    phases: list[Any]
    phase_names: list[str]
    differences: list[Any]


def page(comparison: Comparison, base: Path) -> str:
    """The page as text; links to run folders are relative to `base`, where it will lie.

    Raises:
        MissingExtra: jinja2 or plotly is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingExtra(_INSTALL) from None
    panels = _panels(comparison)
    drawn = {f"curves-{index}": panel.curves for index, panel in enumerate(panels) if panel.curves}
    scripts = [_plain_lines(get_plotlyjs()), _asset("page.js")] if drawn else []
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["breakable"] = breakable
    template = environment.from_string(_asset("page.html.j2"))
    return template.render(
        comparison=comparison,
        panels=panels,
        style=_asset("page.css"),
        scripts=scripts,
        script_hashes=" ".join(f"'sha256-{_sha256(script)}'" for script in scripts),
        data=_script_safe_json(drawn),
        counts=_counts(comparison.runs),
        runs=[(run, _link(run.folder, base)) for run in comparison.runs],
        definitions=DEFINITIONS,
        most_curves=MOST_CURVES,
    )


def breakable(value: str) -> str:
    """Text whose very long words, such as a path or a line of noise, may break: a zero-width space every 24 letters."""
    return _LONG_WORD.sub(lambda word: word[0] + "\u200b", value)


def _asset(name: str) -> str:
    return _plain_lines((files("runner.report") / "page" / name).read_text(encoding="utf-8"))


def _plain_lines(value: str) -> str:
    """With the line ends an HTML parser makes of all others, so that hashes agree."""
    return value.replace("\r\n", "\n").replace("\r", "\n")


def _sha256(script: str) -> str:
    """Hash of a script for the page's content security policy: only these scripts may run in it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _script_safe_json(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


def _link(folder: Path, base: Path) -> str:
    """A relative, percent-encoded link from `base` to a run folder."""
    return quote(os.path.relpath(str(folder), str(base))) + "/"


def _counts(runs: Sequence[Run]) -> list[tuple[str, int]]:
    """How many runs have each status, completed first."""
    found: dict[str, int] = {"completed": 0}
    for run in runs:
        found[run.status] = found.get(run.status, 0) + 1
    return [(status, count) for status, count in found.items() if count]


def _panels(comparison: Comparison) -> list[Panel]:
    """One panel a workload; records without one are in the list of all runs only."""
    workloads = list(dict.fromkeys(table.workload for table in comparison.tables if table.workload))
    return [
        _panel(workload, [table for table in comparison.tables if table.workload == workload]) for workload in workloads
    ]


def _panel(workload: Workload, tables: Sequence[Table]) -> Panel:
    rows = _distinct_rows(tables)
    done = [row for row in rows if row.completed_runs]
    ended = done or rows
    style_of = styles([*done, *(row for row in rows if not row.completed_runs)])
    colour_by_method = {row.method: style_of[row.label].colour for row in rows}
    drawn = curves(ended, style_of)
    phases = phase_stacks(ended[:MOST_BARS])
    return Panel(
        title=workload_text(workload),
        headlines=[line for table in tables for line in headline(table)],
        tables=[_table_view(table, colour_by_method) for table in tables],
        tiles=tiles(rows),
        curves=drawn,
        coinciding=coinciding(drawn),
        metric=judging_metric(ended[0]) if ended else "",
        confusions=[found for row in ended[:_MOST_CONFUSIONS] if (found := confusion(row))],
        rows_left_out=max(0, len(ended) - MOST_CURVES),
        memory=memory_pairs(ended[:MOST_BARS], lambda row: style_of[row.label].colour),
        phases=phases,
        phase_names=list(dict.fromkeys(segment.name for _, _, segments in phases for segment in segments)),
        differences=configuration_differences(rows),
    )


def _distinct_rows(tables: Sequence[Table]) -> list[Row]:
    """Each row once, though it may stand in several tables, with a label that is unique among all of them."""
    rows = {row.first.folder: row for table in reversed(tables) for row in table.rows}
    ordered = dict.fromkeys(row.first.folder for table in tables for row in table.rows)
    return label_rows(
        [replace(rows[folder], speed_up=None, is_baseline=False) for folder in ordered], shared_batch=False
    )


def _table_view(table: Table, colours: dict[str, int]) -> TableView:
    """A comparing table comes with bars; one of unrelated runs does not."""
    compares = table.kind != "runs"

    def colour_of(row: Row) -> int:
        return colours.get(row.method, 0)

    columns = table_columns(table)
    dense = len(columns) >= _DENSE_FROM
    return TableView(
        table=table,
        columns=columns,
        dense=dense,
        least_width=least_width(columns, dense),
        statement=statement(table.fairness) if table.fairness else [],
        train_bars=train_time_bars(table.rows, colour_of) if compares else None,
        batch_bars=largest_batch_bars(table.rows, colour_of) if table.kind == "largest" else None,
    )


def least_width(columns: Sequence[Column], dense: bool) -> int:
    """Pixels below which a table would have to break words: then each row is a card of its own."""
    letter, gap = (_DENSE_LETTER, _DENSE_GAP) if dense else (_LETTER, _GAP)
    words = [
        max(len(word) for cell in (column.heading, *column.cells) for word in [*cell.split(), ""]) for column in columns
    ]
    return math.ceil(sum(count * letter + gap for count in words))


def headline(table: Table) -> list[str]:
    """What a matched-batch table says about speed, in one sentence, with the doubt that is due.

    A ratio is stated between two rows that differ in the method and in nothing else that was checked.
    """
    if table.kind != "matched":
        return []
    if table.drift:
        return [table.drift]
    baselines = {setting_beside_method(row.first): row for row in table.rows if row.is_baseline}
    rated = [(row, row.speed_up, baselines[setting_beside_method(row.first)]) for row in table.rows if row.speed_up]
    fair = [(row, ratio, baseline) for row, ratio, baseline in rated if not beside_the_method(baseline, row)]
    if not rated:
        doubtful = any(row.unjudged for row in table.rows)
        return (
            ["A drift of the machine could explain the differences, so no method is called faster."] if doubtful else []
        )
    if not fair:
        row, _, baseline = rated[0]
        named = ", ".join(beside_the_method(baseline, row))
        return [f"No speed-up is stated: {row.label} and {baseline.label} differ in more than the method ({named})."]
    row, ratio, baseline = max(fair, key=lambda found: (found[1].distinguishable, found[1].value))
    place = f"at global batch {row.first.global_batch_size}"
    if ratio.distinguishable and ratio.value > 1:
        sentence = f"{row.label} trains {ratio_text(ratio)} as fast as {baseline.label} {place}."
    elif ratio.low is None and ratio.value >= _WORTH_SAYING:
        sentence = (
            f"{row.label} trains {ratio.value:.2f}× as fast as {baseline.label} {place}, without the repeats "
            "that would say how sure that is."
        )
    else:
        sentence = f"No method is distinguishably faster than {baseline.label} {place}."
    missing = sorted({*row.seeds} ^ {*baseline.seeds})
    return [sentence + (" The rows differ in data order, seed." if missing else "")]


def tiles(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """(what, value, whose) of the best completed rows; nothing where there is no choice or nothing was measured."""
    done = [row for row in rows if row.completed_runs]
    if len(done) < 2:
        return []
    timed = [(row.train_seconds.mean, row) for row in done if row.train_seconds]
    weighed = [(row.peak_memory_bytes, row) for row in done if row.peak_memory_bytes]
    sized = [(size, row) for row in done if (size := largest_batch(row))]
    found = _metric_tile(done)
    if timed:
        row = min(timed, key=lambda pair: pair[0])[1]
        found.append(("shortest epoch", f"{seconds_text(row.train_seconds)} s", row.label))
    if weighed:
        peak, row = min(weighed, key=lambda pair: pair[0])
        found.append(("smallest peak memory", bytes_text(peak), row.label))
    if sized:
        size, row = max(sized, key=lambda pair: pair[0])
        found.append(("largest micro batch", str(size), row.label))
    return found


def _metric_tile(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """The best value of the metric that judges the recipe."""
    name = judging_metric(rows[0])
    scored = [(row.metrics[name].mean, row) for row in rows if name in row.metrics]
    if not scored:
        return []
    recipe = mapping(mapping(rows[0].first.raw.get("config")).get("recipe"))
    best = (max if recipe.get("greater_is_better", True) else min)(scored, key=lambda pair: pair[0])[1]
    equal = sum(metric_text(row.metrics[name]) == metric_text(best.metrics[name]) for _, row in scored)
    return [(f"best {name}", metric_text(best.metrics[name]), f"{equal} rows" if equal > 1 else best.label)]
