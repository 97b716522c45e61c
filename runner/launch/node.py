"""The agent of one node: `python -m runner.launch.node` (started over ssh, its request on standard input) or
`python -m runner.launch.node RUN_DIR [HEAD:PORT]` (a Slurm job step on a prepared run folder).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from runner.launch.process_signals import listen_early


def main() -> int:
    """Do this node's part; returns the exit status. Handlers stand before anything heavy is imported."""
    listen_early()
    from runner.__main__ import delivered

    if len(sys.argv) > 1:
        return delivered(lambda: _job_step(sys.argv[1:]), resumable=True)
    return _from_standard_input()


def _job_step(arguments: list[str]) -> int:
    from pathlib import Path

    from runner.clusters.slurm.agent import run_step

    return run_step(Path(arguments[0]), arguments[1] if len(arguments) > 1 else None)


def _from_standard_input() -> int:
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    bundle = json.loads(line)
    os.environ.update(bundle["environment"])
    threading.Thread(target=_end_with_the_head, daemon=True).start()
    from runner.__main__ import answer

    return answer("run", bundle["arguments"])


def _end_with_the_head() -> None:
    """End this node and, by the kernel, its ranks when ssh is gone."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
