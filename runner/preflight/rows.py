"""Rows of several layouts, which a recipe checks itself: the first wrong one of each split is named."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from runner.config.schema import RunConfig
from runner.data.files import read_rows
from runner.data.scan import SplitScan, split_paths
from runner.errors import Problem
from runner.recipe import Recipe


def row_problems(config: RunConfig, recipe: Recipe, scans: Mapping[str, SplitScan]) -> list[Problem]:
    """For each split the first row that `recipe.row_problem` finds fault with, and how many there are."""
    problems = []
    for split, scan in scans.items():
        paths = split_paths(config.dataset, split)
        rows = islice((row for path in paths for row in read_rows(path)), scan.rows)
        wrong = [(number, why) for number, why in enumerate(map(recipe.row_problem, rows), start=1) if why is not None]
        if wrong:
            number, why = wrong[0]
            more = f" ({len(wrong) - 1:,} more rows are wrong)" if len(wrong) > 1 else ""
            named = getattr(config.dataset, split)
            problems.append(
                Problem(f"dataset.{split}", named, f"{scan.place(paths, number)} {why}{more}", "correct or remove it")
            )
    return problems
