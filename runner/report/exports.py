"""Tables for programs: CSV with one line a row, JSON with the runs and the fairness checks as well."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from typing import Any

from runner.report.aggregation import Row
from runner.report.fairness import Fairness
from runner.report.intervals import Estimate
from runner.report.reading import dig, number
from runner.report.run_view import Run
from runner.report.tables import DEFINITIONS, Comparison, Table

_FORMULA_STARTS = ("=", "+", "-", "@")


def csv_text(comparison: Comparison) -> str:
    """All tables below each other, distinguished by the column `table`; half widths are of 95 % intervals."""
    metrics = list(dict.fromkeys(name for table in comparison.tables for name in table.metric_names))
    lines = [_csv_line(table, row, metrics) for table in comparison.tables for row in table.rows]
    out = io.StringIO()
    if lines:
        writer = csv.DictWriter(out, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return out.getvalue()


def _csv_line(table: Table, row: Row, metrics: list[str]) -> dict[str, Any]:
    run, ratio = row.first, row.speed_up
    return {
        "table": _cell(table.title),
        "label": _cell(row.label),
        "method": _cell(row.method),
        "micro_batch_size": run.micro_batch_size,
        "gradient_accumulation_steps": run.gradient_accumulation_steps,
        "world_size": run.world_size,
        "global_batch_size": run.global_batch_size,
        "largest_micro_batch": row.largest_micro_batch,
        **_estimate_columns("train_seconds", row.train_seconds),
        **_estimate_columns("eval_seconds", row.eval_seconds),
        **{
            key: value
            for name in metrics
            for key, value in _estimate_columns(_cell(name), row.metrics.get(name)).items()
        },
        "peak_memory_bytes": row.peak_memory_bytes,
        "speed_up": ratio.value if ratio else None,
        "speed_up_low": ratio.low if ratio else None,
        "speed_up_high": ratio.high if ratio else None,
        "unjudged": row.unjudged or None,
        "n": len(row.completed_runs),
        "n_planned": max(row.planned or 0, len(row.runs)),
        "learning_rate": number(dig(run.raw, "config.optimizer.lr")),
        "seeds": " ".join(str(run.seed) for run in row.completed_runs if run.seed is not None),
        "status": _cell(row.status),
        "reason": _cell(row.reason),
        "run_folders": _cell(" ".join(str(run.folder) for run in row.runs)),
    }


def _estimate_columns(name: str, value: Estimate | None) -> dict[str, float | None]:
    return {name: value.mean if value else None, f"{name}_half_width": value.half_width if value else None}


def _cell(value: str) -> str:
    """Text that a spreadsheet will not take for a formula."""
    return f"'{value}" if value.startswith(_FORMULA_STARTS) else value


def json_text(comparison: Comparison) -> str:
    """Tables with their rows and fairness checks, every run, and what the numbers mean."""
    report = {
        "made_at": comparison.made_at.isoformat(timespec="seconds"),
        "definitions": DEFINITIONS,
        "notes": comparison.notes,
        "tables": [_table(table) for table in comparison.tables],
        "runs": [_run(run) for run in comparison.runs],
    }
    return json.dumps(report, indent=1, allow_nan=False) + "\n"


def _table(table: Table) -> dict[str, Any]:
    return {
        "kind": table.kind,
        "title": table.title,
        "workload": dict(zip(("recipe", "model", "dataset"), table.workload, strict=True)) if table.workload else None,
        "rows": [_row(row) for row in table.rows],
        "fairness": _fairness(table.fairness) if table.fairness else None,
        "notes": table.notes,
        "drift": table.drift or None,
    }


def _row(row: Row) -> dict[str, Any]:
    run = row.first
    return {
        "label": row.label,
        "method": row.method,
        "status": row.status,
        "reason": row.reason,
        **_batch(run),
        "largest_micro_batch": row.largest_micro_batch,
        "train_seconds": asdict(row.train_seconds) if row.train_seconds else None,
        "eval_seconds": asdict(row.eval_seconds) if row.eval_seconds else None,
        "metrics": {name: asdict(value) for name, value in row.metrics.items()},
        "peak_memory_bytes": row.peak_memory_bytes,
        "speed_up": asdict(row.speed_up) if row.speed_up else None,
        "is_baseline": row.is_baseline,
        "unjudged": row.unjudged or None,
        "n": len(row.completed_runs),
        "n_planned": max(row.planned or 0, len(row.runs)),
        "seeds": [run.seed for run in row.completed_runs],
        "runs": [run.run_id for run in row.runs],
    }


def _batch(run: Run) -> dict[str, int | None]:
    return {
        "micro_batch_size": run.micro_batch_size,
        "gradient_accumulation_steps": run.gradient_accumulation_steps,
        "world_size": run.world_size,
        "global_batch_size": run.global_batch_size,
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "folder": str(run.folder),
        "status": run.status,
        "reason": run.reason,
        "method": run.method,
        "seed": run.seed,
        **_batch(run),
        "train_seconds": run.train_seconds_per_epoch,
        "eval_seconds": run.eval_seconds_per_epoch,
        "metrics": run.metrics,
        "test_metrics": run.test_metrics,
        "peak_memory_bytes": run.peak_memory_bytes,
        "predicted_memory_bytes": run.predicted_memory_bytes,
        "is_trial": run.is_trial,
        "generated_data": run.generated_data,
    }


def _fairness(fairness: Fairness) -> dict[str, Any]:
    return {"compared_rows": fairness.compared, "checks": [asdict(check) for check in fairness.checks]}
