"""A request as typed, composed; with everything that is wrong in it."""

from __future__ import annotations

from collections.abc import Sequence

from runner.compose import Composed, compose_run
from runner.compose.app import WrongRequest
from runner.errors import Problem, RequestError


def composed_request(arguments: Sequence[str]) -> Composed:
    """As `compose_run`; what is wrong is reported together with what the other checks before a run find.

    Raises:
        RequestError: with every mistake in the request.
    """
    try:
        return compose_run(list(arguments))
    except WrongRequest as error:
        known = {problem.key for problem in error.problems}
        raise RequestError(
            error.problems + [problem for problem in _further_problems(error) if problem.key not in known]
        ) from None


def _further_problems(error: WrongRequest) -> list[Problem]:
    if error.rest is None:
        return []
    from runner.preflight.partial_checks import (
        further_problems,
    )  # not before it is needed: a typo alone is reported sooner

    return further_problems(error.rest, error.wrong)
