"""Figures: repeated measurements of the runner and of its baseline, and what follows from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any


@dataclass
class Figure:
    """One row of the table.

    Attributes:
        name: short, used by `--only`.
        what: the row's text.
        unit: of the measurements.
        ours: measurements of the runner, in the order taken.
        baseline: those of the plain script, each taken next to the one of the same index; empty where the target is
            absolute.
        target: largest (or, with `more_is_better`, smallest) value that is good enough, of the ratio or of `ours`.
        more_is_better: the runner should have more than the baseline.
        part: which part of the benchmarks made it, for `--only`.
        notes: what a reader has to know, one sentence each.
        commands: what was typed.
    """

    name: str
    what: str
    unit: str
    ours: list[float]
    baseline: list[float] = field(default_factory=list)
    target: float | None = None
    more_is_better: bool = False
    part: str = ""
    notes: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    @property
    def value(self) -> float:
        """What the target speaks of: the ratio of medians where there is a baseline, else the median."""
        return median(self.ours) / median(self.baseline) if self.baseline else median(self.ours)

    @property
    def pair_ratios(self) -> list[float]:
        """The ratio of each pair of measurements taken next to each other."""
        return [own / other for own, other in zip(self.ours, self.baseline, strict=False)]

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.more_is_better else self.value <= self.target

    def as_dict(self) -> dict[str, Any]:
        """For results.json."""
        derived = {
            "median": median(self.ours),
            "baseline_median": median(self.baseline) if self.baseline else None,
            "value": self.value,
            "met": self.met,
        }
        return {
            **asdict(self),
            **derived,
            "spread": spread(self.ours),
            "baseline_spread": spread(self.baseline),
            "ratio_spread": spread(self.pair_ratios),
        }


def spread(values: list[float]) -> list[float] | None:
    """Smallest and largest value."""
    return [min(values), max(values)] if values else None


def table_row(figure: dict[str, Any]) -> list[str]:
    """A figure of results.json as the cells of a table row: what, runner, baseline, ratio, target, whether met."""
    ours = _number(figure["median"], figure["unit"], figure["spread"])
    if figure["baseline_median"] is None:
        baseline, ratio, unit = "", "", figure["unit"]
    else:
        baseline = _number(figure["baseline_median"], figure["unit"], figure["baseline_spread"])
        ratio, unit = f"{figure['value']:.2f}" if abs(figure["value"] - 1) > 0.05 else f"{figure['value']:.3f}", ""
    sign = "≥" if figure["more_is_better"] else "≤"
    target = "" if figure["target"] is None else f"{sign} {figure['target']:g} {unit}".strip()
    return [figure["what"], ours, baseline, ratio, target, {True: "yes", False: "**no**", None: ""}[figure["met"]]]


def _number(value: float, unit: str, around: list[float] | None) -> str:
    text = f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
    text = text.strip()
    if around and around[0] != around[1] and value:
        text += f" ± {max(around[1] - value, value - around[0]) / value:.0%}"
    return text


def markdown_table(figures: list[dict[str, Any]]) -> str:
    """The table of figures; ± is the largest distance from the median."""
    header = ["figure", "runner", "baseline", "ratio", "target", "met"]
    lines = [" | ".join(header), "|".join(["---", "---:", "---:", "---:", "---:", "---"])]
    lines += [" | ".join(table_row(figure)) for figure in figures]
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)
