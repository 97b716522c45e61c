"""`python -m runner render [overrides]`: write and print a run's files without starting anything."""

from __future__ import annotations

from collections.abc import Sequence

from runner import render
from runner.cli.request import composed_request
from runner.errors import EXIT_COMPLETED
from runner.preflight.check import check

USAGE = """usage: python -m runner render [KEY=VALUE | GROUP=OPTION ...]

Write and print config.yaml, accelerate.yaml, ds_config.json and the by-hand command of a run; nothing is started.
`python -m runner --help` lists the groups, `python -m runner keys` the keys."""


def main(arguments: Sequence[str]) -> int:
    """Compose, check what can be checked without a network, write the files, print them."""
    composed = composed_request(arguments)
    checked = check(composed, starting=False)
    rendered = render.render(checked.config, checked.run_dir, checked.total_steps, checked.own_file)
    render.write(rendered, checked.run_dir)
    for name, text in rendered.items():
        print(f"# {checked.run_dir / name}\n{text}")
    for problem in checked.notices:
        print(problem.line())
    return EXIT_COMPLETED
