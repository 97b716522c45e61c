"""`python -m runner completion SHELL`: print a script that completes verbs, groups, options, keys and values on Tab."""

from __future__ import annotations

from collections.abc import Sequence

from runner.completion import SHELLS, script
from runner.errors import EXIT_COMPLETED, Problem, RequestError, nearest

USAGE = """usage: python -m runner completion bash|zsh|fish

Print a script that completes verbs, groups, options, keys and values on Tab. Keep it where the shell looks:
  bash   finetune-runner completion bash > ~/.local/share/bash-completion/completions/finetune-runner
         (for `python -m runner` as well: `source` that file in ~/.bashrc)
  zsh    finetune-runner completion zsh > "${fpath[1]}/_finetune-runner"
  fish   finetune-runner completion fish > ~/.config/fish/completions/finetune-runner.fish
Write it again after an update: keys and verbs stand in it; options are looked up at each press, yours in ./conf too."""


def main(arguments: Sequence[str]) -> int:
    """Print the script; returns the exit status.

    Raises:
        RequestError: for a shell that is not known.
    """
    from runner.__main__ import VERBS

    if len(arguments) != 1 or arguments[0] not in SHELLS:
        typed = " ".join(arguments)
        near = nearest(typed, SHELLS, cutoff=0.4) or "bash"
        why = f"name one shell: {', '.join(SHELLS)}"
        raise RequestError(Problem("SHELL", typed or None, why, f"use python -m runner completion {near}"))
    print(script(arguments[0], VERBS))
    return EXIT_COMPLETED
