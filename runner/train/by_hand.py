"""The entry of a rank that was started by hand: `accelerate launch … -m runner.train.worker RUN_DIR`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from runner.errors import EXIT_BAD_REQUEST, EXIT_COMPLETED, EXIT_FAILED, RequestError
from runner.rundir import CONFIG_FILE


def run_by_hand(work: Callable[[str], None], arguments: list[str]) -> None:
    """Entry of a rank started by hand: keep the record true, whatever happens."""
    if len(arguments) != 1 or not (Path(arguments[0]) / CONFIG_FILE).is_file():
        print("error: RUN_DIR: give a folder written by `python -m runner render`", file=sys.stderr)
        sys.exit(EXIT_BAD_REQUEST)
    try:
        work(arguments[0])
    except RequestError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_BAD_REQUEST)
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        sys.exit(EXIT_FAILED)
    # The work is done and the group is ended; threads of the libraries now and then abort an interpreter that winds
    # down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_COMPLETED)
