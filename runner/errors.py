"""What is wrong with a request, in a form that can be collected and printed one line each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from runner.plain_text import escaped
from runner.secrets import redacted

Severity = Literal["error", "warning", "notice"]

EXIT_COMPLETED = 0
EXIT_FAILED = 1
EXIT_BAD_REQUEST = 2
EXIT_SWEEP_CELL_FAILED = 3
EXIT_OUT_OF_MEMORY = 4
EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: try again, here with `resume`
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Problem:
    """One finding: the key and value it is about, why it is wrong, and the override that fixes it."""

    key: str
    value: object
    why: str
    fix: str = ""
    severity: Severity = "error"

    def line(self) -> str:
        """The finding as one line, as a user reads it."""
        subject = self.key if self.value is None else f"{self.key}={_short(self.value)}"
        text = f"{self.severity}: {subject}: {self.why}"
        return redacted(escaped(f"{text}; {self.fix}" if self.fix else text))


class RequestError(Exception):
    """The request was wrong; nothing was started. Carries every problem found, not only the first."""

    def __init__(self, problems: Iterable[Problem] | Problem) -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(problem.line() for problem in self.problems))


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name that was probably meant, whatever its case; None where none is near.

    Args:
        cutoff: least similarity, from 0 to 1 (equal).
    """
    by_folded = {name.casefold(): name for name in names}
    near = get_close_matches(word.casefold(), by_folded, n=1, cutoff=cutoff)
    return by_folded[near[0]] if near else None


def _short(value: object, limit: int = 120) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
