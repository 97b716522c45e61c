"""A rank that trains epochs by the runner's loop and by the bare loop in turn, on the same batches.

Started by `accelerate launch -m benchmarks.loop_rank RUN_DIR ANSWER ROUNDS` on a rendered run folder. The order of the
two changes from round to round; each epoch's seconds are the sum over its steps, collating included.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from runner import rundir
from runner.recipe import load_recipe
from runner.train import loop, optimization, worker
from runner.train.checkpoint import Checkpoints
from runner.train.faults import Faults
from runner.train.progress import Heartbeat, MetricsLog
from runner.train.ranks import build_accelerator
from runner.train.timing import PhaseClock

WARM_UP_STEPS = 5


def main(folder: str, answer: str, rounds: str) -> None:
    """Measure, and let rank 0 write milliseconds a step by loop."""
    run = _run(Path(folder))
    batches = [batch for window in loop.plan_epoch(run, 0) for batch in window.batches]
    _runner_epoch(run, WARM_UP_STEPS)
    _bare_epoch(run, batches[:WARM_UP_STEPS])
    found: dict[str, list[float]] = {"loop": [], "bare": []}
    for number in range(int(rounds)):
        for name in ("loop", "bare") if number % 2 else ("bare", "loop"):
            run.accelerator.wait_for_everyone()
            seconds = _runner_epoch(run, len(batches)) if name == "loop" else _bare_epoch(run, batches)
            found[name].append(1000 * seconds / len(batches))
    if run.accelerator.is_main_process:
        Path(answer).write_text(json.dumps(found))
    run.accelerator.end_training()


def _run(run_dir: Path) -> Any:
    config = rundir.read_config(run_dir)
    accelerator = build_accelerator(config)
    rank = accelerator.process_index
    run = worker.RankRun(run_dir, config, time.monotonic(), PhaseClock(), load_recipe(config), accelerator, Heartbeat(run_dir, rank), Faults(rank))
    run.clock.on_entry = run.faults
    worker._load_data(run)
    model = worker._load_model(run)
    run.prepared = optimization.prepare(config, accelerator, model, 10_000)
    run.checkpoints = Checkpoints(run)
    run.prepared.model.train()
    return run


def _runner_epoch(run: Any, steps: int) -> float:
    """The runner's own epoch, as it stands in a run: clock, log, heartbeat, requests to stop."""
    log = MetricsLog(run.run_dir) if run.accelerator.is_main_process else None
    state = loop.LoopState()
    began = time.perf_counter()
    loop.train_epoch(run, state, steps, run.heartbeat, log)
    return time.perf_counter() - began


def _bare_epoch(run: Any, batches: list[Any]) -> float:
    """What a script does for each batch, and nothing else."""
    model, optimizer, accelerator = run.prepared.model, run.prepared.optimizer, run.accelerator
    loader = DataLoader(loop._Collated(run, batches), batch_size=None, shuffle=False)
    began = time.perf_counter()
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(*sys.argv[1:])
