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
from runner.report.run_view import Run
from runner.report.tables import DEFINITIONS, Comparison, Table

_FORMULA_STARTS = ("=", "+", "-", "@")


def csv_text(comparison: Comparison) -> str:
    """All tables below each other, distinguished by the column `table`; half widths are of 95 % intervals."""
    metrics = list(dict.fromkeys(name for table in comparison.tables for name in table.metric_names))
    lines = [
        {key: value for key, value in _csv_line(table, row, metrics).items() if _is_asked(key, table, metrics)}
        for table in comparison.tables
        for row in table.rows
    ]
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
        "learning_rate": row.learning_rate,
        "seeds": " ".join(map(str, row.seeds)),
        "status": _cell(row.status),
        "reason": _cell(row.reason),
        "run_folders": _cell(" ".join(str(run.folder) for run in row.runs)),
    }


# Which csv columns one of the table's columns stands for, by how they begin.
_CSV_NAMES = {
    "batch": ("micro_batch", "gradient_acc", "world_size", "global_batch", "largest_micro"), "lr": ("learning_rate",),
    "seed": ("seeds",), "train": ("train_seconds",), "eval": ("eval_seconds",), "memory": ("peak_memory",),
    "speed-up": ("speed_up", "unjudged"), "status": ("status", "reason", "run_folders"), "method": (),
}  # fmt: skip


def _is_asked(key: str, table: Table, metrics: list[str]) -> bool:
    asked = table.layout.columns
    if asked is None or key in ("table", "label", "method"):
        return True
    names = [part for name in asked for part in (metrics if name == "metrics" else [name])]
    starts = [start for name in names for start in _CSV_NAMES.get(name, (name,))]
    return any(
        key == start
        or key.startswith(f"{start}_")
        or (start.endswith(("_batch", "_acc", "_micro", "_memory")) and key.startswith(start))
        for start in starts
    )


def _estimate_columns(name: str, value: Estimate | None) -> dict[str, float | None]:
    return {
        name: value.mean if value else None,
        f"{name}_half_width": value.half_width if value else None,
        f"{name}_std": value.deviation if value else None,
    }


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
        "seeds": row.seeds,
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
